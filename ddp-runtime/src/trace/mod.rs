//! The timeline room: with `DDP_TRACE=FILE`, what each rank did when, in Chrome's trace format (opens in Perfetto).
//!
//! - `clock`: one clock for all ranks;
//! - `summary`: totals and the line that is shown at the end;
//! - `chrome`: the file.
//!
//! # Note [What a timeline knows]
//!
//! Recorded are the moments that the runtime passes through: a batch drawn from a shared iterator (*data*), a backward, a gradient
//! bucket complete (*ready*), its all-reduce, and each wait for other ranks. A program's forward and its optimizer are not seen; they
//! are what lies between: from a batch to the backward the *forward*, from a backward to the next batch the *optimizer* (with
//! whatever else the program does there, evaluation and printing included). Where no shared iterator is used the two are one.
//!
//! An all-reduce ends when this rank has seen its end, which it looks for in each hook of the backward and in the wait at its end.
//!
//! Nothing is recorded, and nothing costs more than the reading of one flag, unless a scope of several ranks has the option.
mod chrome;
mod clock;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ddp_env::Topology;

use crate::bridge::BridgeError;
use crate::comm::Work;
use crate::control::{Control, Operation};
use crate::error::{Error, Result};
use crate::output;
use crate::watch::Watch;
use clock::{Meeting, now};
use summary::Totals;

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A shared iterator made a batch.
    Data,
    /// A backward, hooks and waits included.
    Backward,
    /// A bucket is complete, and its all-reduce launched: a moment.
    Ready(usize),
    /// The all-reduce of a bucket.
    AllReduce(usize),
    /// Reducing other ranks' buckets in a hook: the transport has no thread of its own.
    Reducing,
    /// Waiting until all ranks have announced an operation.
    Announce(Operation),
    /// Waiting for an operation of the data plane.
    Wait,
}

/// A stretch of time on this rank, in nanoseconds of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    kind: Kind,
    start: u64,
    end: u64,
}

/// Words of an event on the wire.
const WORDS: usize = 3;
/// What all ranks' events together may take on the wire and in memory.
const MOST_BYTES: usize = 64 << 20;
/// Work in a hook that is shorter is not an event of its own, in nanoseconds; it counts in the totals.
const SHORT: u64 = 20_000;

impl Kind {
    fn encode(self) -> [u64; 2] {
        match self {
            Self::Data => [0, 0],
            Self::Backward => [1, 0],
            Self::Ready(bucket) => [2, bucket as u64],
            Self::AllReduce(bucket) => [3, bucket as u64],
            Self::Reducing => [4, 0],
            Self::Announce(operation) => [5, operation.code().cast_unsigned()],
            Self::Wait => [6, 0],
        }
    }

    fn decode(code: u64, detail: u64) -> Option<Self> {
        let place = usize::try_from(detail).ok()?;
        Some(match code {
            0 => Self::Data,
            1 => Self::Backward,
            2 => Self::Ready(place),
            3 => Self::AllReduce(place),
            4 => Self::Reducing,
            5 => Self::Announce(Operation::from_code(detail.cast_signed())?),
            6 => Self::Wait,
            _ => return None,
        })
    }
}

impl Event {
    /// The kind in the upper eight bits of the first word, what it is about in the rest.
    fn encode(&self) -> [u64; WORDS] {
        let [code, detail] = self.kind.encode();
        [code << 56 | detail, self.start, self.end]
    }

    fn decode(words: [u64; WORDS]) -> Option<Self> {
        let kind = Kind::decode(words[0] >> 56, words[0] & ((1 << 56) - 1))?;
        Some(Self { kind, start: words[1], end: words[2] })
    }
}

/// What a rank has recorded.
struct Recorder {
    path: PathBuf,
    rank: usize,
    most: usize,
    events: Vec<Event>,
    left_out: u64,
    totals: Totals,
    /// How far this rank's clock is ahead of rank 0's.
    offset: i64,
    /// When the backward under way began.
    backward: Option<u64>,
    /// The size of gradient buckets.
    bucket_bytes: usize,
}

static ON: AtomicBool = AtomicBool::new(false);
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn recorder() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether events are recorded.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Begins to record, in all ranks. `path` is the file of the process's `generation`-th group, counted from 0.
pub(crate) fn start(
    path: &Path,
    generation: u64,
    topology: Topology,
    control: &Control,
    watch: &Watch,
) -> Result<()> {
    // The ranks of one host read one clock.
    let one_host = topology.local_world_size == topology.world_size;
    let offset = if one_host { 0 } else { Meeting::hold(control, watch)? };
    *recorder() = Some(Recorder {
        path: path_of_group(path, generation),
        rank: topology.rank,
        most: MOST_BYTES / (topology.world_size * WORDS * 8),
        events: Vec::new(),
        left_out: 0,
        totals: Totals::default(),
        offset,
        backward: None,
        bucket_bytes: 0,
    });
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Gradient buckets close at so many bytes.
pub(crate) fn note_bucket_bytes(bytes: usize) {
    if let Some(recorder) = &mut *recorder() {
        recorder.bucket_bytes = bytes;
    }
}

/// Between two steps: stops recording until it is told to go on. What a timeline costs can be measured so, within one run.
pub fn pause_timeline(paused: bool) {
    let recording = recorder().is_some();
    ON.store(recording && !paused, Ordering::Relaxed);
}

/// `trace.json` for the first group of a process, `trace.1.json` for the next.
fn path_of_group(path: &Path, generation: u64) -> PathBuf {
    match generation {
        0 => path.to_owned(),
        number => with_part(path, &number.to_string()),
    }
}

/// `trace.json` with `part` before its ending.
fn with_part(path: &Path, part: &str) -> PathBuf {
    match path.extension() {
        Some(ending) => path.with_extension(format!("{part}.{}", ending.to_string_lossy())),
        None => path.with_extension(part),
    }
}

impl Recorder {
    fn add(&mut self, event: Event) {
        self.totals.add(&event);
        if event.kind == Kind::Reducing && event.end - event.start < SHORT {
            return;
        }
        if self.events.len() < self.most {
            self.events.push(event);
        } else {
            self.left_out += 1;
        }
    }
}

fn record(kind: Kind, start: u64, end: u64) {
    if let Some(recorder) = &mut *recorder() {
        recorder.add(Event { kind, start, end });
    }
}

/// Records from now until it is dropped.
#[must_use = "the event ends when this is dropped"]
pub(crate) struct Span(Option<(Kind, u64)>);

/// Begins an event, if events are recorded.
pub(crate) fn span(kind: Kind) -> Span {
    Span(is_on().then(|| (kind, now())))
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((kind, start)) = self.0 {
            record(kind, start, now());
        }
    }
}

/// A backward begins.
pub(crate) fn begin_backward() {
    if is_on() {
        let start = now();
        if let Some(recorder) = &mut *recorder() {
            recorder.backward = Some(start);
        }
    }
}

/// The backward that began last is over.
pub(crate) fn end_backward() {
    if is_on() {
        let end = now();
        if let Some(recorder) = &mut *recorder()
            && let Some(start) = recorder.backward.take()
        {
            recorder.add(Event { kind: Kind::Backward, start, end });
        }
    }
}

/// The all-reduce of a bucket, which records its end when it is seen. Without a timeline the work itself.
pub(crate) fn all_reduce(bucket: usize, work: Box<dyn Work>) -> Box<dyn Work> {
    if !is_on() {
        return work;
    }
    let start = now();
    record(Kind::Ready(bucket), start, start);
    Box::new(Traced { work, bucket, start, seen: AtomicBool::new(false) })
}

struct Traced {
    work: Box<dyn Work>,
    bucket: usize,
    start: u64,
    seen: AtomicBool,
}

impl Traced {
    fn note(&self, done: bool) -> bool {
        if done && !self.seen.swap(true, Ordering::Relaxed) {
            record(Kind::AllReduce(self.bucket), self.start, now());
        }
        done
    }
}

impl Work for Traced {
    fn is_done(&self) -> std::result::Result<bool, BridgeError> {
        // Each hook asks all works that it has launched: those that have ended need not be asked again.
        if self.seen.load(Ordering::Relaxed) {
            return Ok(true);
        }
        self.work.is_done().map(|done| self.note(done))
    }

    fn wait(&self, limit: Duration) -> std::result::Result<bool, BridgeError> {
        self.work.wait(limit).map(|done| self.note(done))
    }
}

/// A group ends well, all ranks at this point, of which those in `traced` have recorded: rank 0 writes the file and shows the
/// summary.
pub(crate) fn finish(control: &Control, watch: &Watch, traced: &[bool]) -> Result<()> {
    ON.store(false, Ordering::Relaxed);
    let recorder = recorder().take();
    if let Some(without) = traced.iter().position(|traced| !traced) {
        if traced.contains(&true) {
            output::notice(format_args!("no timeline: DDP_TRACE is not set on rank {without}"));
        }
        return Ok(());
    }
    let Some(recorder) = recorder else { return Ok(()) };
    let mut words = vec![recorder.left_out];
    words.extend(recorder.totals.encode());
    words.extend(recorder.events.iter().flat_map(|event| event.on_one_clock(recorder.offset)));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = control.gather_bytes(watch, &bytes)?;
    if recorder.rank > 0 {
        return Ok(());
    }
    let ranks: Option<Vec<Timeline>> =
        all.iter().enumerate().map(|(rank, bytes)| Timeline::decode(rank, bytes)).collect();
    let Some(ranks) = ranks else {
        return Err(Error::mismatch(
            "a timeline holds what no version of this crate sends",
            "start all ranks from one and the same binary",
        ));
    };
    write(&recorder.path, &ranks, recorder.bucket_bytes);
    let totals: Vec<Totals> = ranks.iter().map(|rank| rank.totals).collect();
    output::notice(format_args!("{}", summary::line(&totals)));
    Ok(())
}

/// A group ends early: this rank's own part of the timeline, which shows what it did last.
pub(crate) fn abandon() {
    ON.store(false, Ordering::Relaxed);
    let Some(recorder) = recorder().take() else { return };
    let rank = recorder.rank;
    let own = Timeline {
        rank,
        events: recorder.events,
        left_out: recorder.left_out,
        totals: recorder.totals,
    };
    let path = with_part(&recorder.path, &format!("rank{rank}"));
    write(&path, &[own], recorder.bucket_bytes);
}

/// A timeline that cannot be written is no reason to lose a training run.
fn write(path: &Path, ranks: &[Timeline], bucket_bytes: usize) {
    match std::fs::write(path, chrome::document(ranks, bucket_bytes)) {
        Ok(()) => output::notice(format_args!("timeline in {}", path.display())),
        Err(error) => {
            output::notice(format_args!("no timeline: writing {}: {error}", path.display()));
        }
    }
}

impl Event {
    fn on_one_clock(&self, offset: i64) -> [u64; WORDS] {
        let moved = |time: u64| time.saturating_add_signed(-offset);
        Self { start: moved(self.start), end: moved(self.end), ..*self }.encode()
    }
}

/// What one rank has sent.
struct Timeline {
    rank: usize,
    events: Vec<Event>,
    left_out: u64,
    totals: Totals,
}

impl Timeline {
    fn decode(rank: usize, bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (left_out, words) = words.split_first()?;
        let (totals, words) = words.split_at_checked(Totals::WORDS)?;
        let (events, more) = words.as_chunks::<WORDS>();
        if !rest.is_empty() || !more.is_empty() {
            return None;
        }
        Some(Self {
            rank,
            events: events.iter().map(|words| Event::decode(*words)).collect::<Option<_>>()?,
            left_out: *left_out,
            totals: Totals::decode(totals)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_wire_on_the_clock_of_rank_0() {
        let kinds = [
            Kind::Data,
            Kind::Backward,
            Kind::Ready(3),
            Kind::AllReduce(70_000),
            Kind::Reducing,
            Kind::Announce(Operation::Epoch),
            Kind::Wait,
        ];
        for kind in kinds {
            let event = Event { kind, start: 1_000, end: 2_000 };
            let moved = Event { start: 1_250, end: 2_250, ..event };
            assert_eq!(Event::decode(event.on_one_clock(-250)), Some(moved));
        }
        assert_eq!(Event::decode([99 << 56, 0, 0]), None);
    }

    #[test]
    fn a_later_group_has_a_file_of_its_own() {
        let name = |path: &str, generation| path_of_group(Path::new(path), generation);
        assert_eq!(name("a/run.json", 0), Path::new("a/run.json"));
        assert_eq!(name("a/run.json", 2), Path::new("a/run.2.json"));
        assert_eq!(name("run", 1), Path::new("run.1"));
    }

    #[test]
    fn a_long_run_keeps_its_first_events_and_all_of_its_totals() {
        let mut recorder = Recorder {
            path: PathBuf::new(),
            rank: 0,
            most: 2,
            events: Vec::new(),
            left_out: 0,
            totals: Totals::default(),
            offset: 0,
            backward: None,
            bucket_bytes: 0,
        };
        for step in 1..=5 {
            recorder.add(Event { kind: Kind::Backward, start: step * 10, end: step * 10 + 5 });
        }
        assert_eq!((recorder.events.len(), recorder.left_out), (2, 3));
        assert_eq!((recorder.totals.backwards, recorder.totals.last), (5, 55));
    }
}
