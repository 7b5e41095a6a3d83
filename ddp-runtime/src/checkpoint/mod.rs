//! Checkpoints: everything that a run needs to go on where it stopped, as if it had never stopped.
//!
//! ```no_run
//! use ddp_runtime::{Checkpoints, distributed, should_stop};
//! use tch::nn::{self, OptimizerConfig};
//! # use tch::{Device, Tensor, vision::dataset::Dataset};
//! # fn net(_: nn::Path) -> impl Fn(&Tensor, &Tensor) -> Tensor { |x: &Tensor, _: &Tensor| x.copy() }
//!
//! #[distributed]
//! fn train(data: &Dataset) -> ddp_runtime::Result<()> {
//!     let vs = nn::VarStore::new(Device::cuda_if_available());
//!     let loss = net(vs.root());
//!     let mut opt = nn::Adam::default().build(&vs, 1e-3).expect("Adam can be built");
//!     let checkpoints = Checkpoints::new("runs/digits").keep(3);
//!     let progress = checkpoints.resume(|saved| {
//!         saved.store("model", &vs)?;
//!         saved.optimizer("adam", &mut opt)
//!     })?;
//!     for epoch in progress.epochs(20) {
//!         for (xs, ys) in progress.batches(data.train_iter(64).shuffle()) {
//!             opt.backward_step(&loss(&xs, &ys));
//!             let stop = should_stop(false); // SIGTERM
//!             if stop || progress.step() % 500 == 0 {
//!                 checkpoints.save(&progress, |to| {
//!                     to.store("model", &vs)?;
//!                     to.optimizer("adam", &opt)
//!                 })?;
//!             }
//!             if stop {
//!                 return Ok(());
//!             }
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A checkpoint is a folder, `runs/digits/000003-step-1500`:
//!
//! | file | what |
//! | --- | --- |
//! | `NAME.safetensors` | the variables of a store, under their own names |
//! | `NAME.optimizer` | the state of an optimizer, in libtorch's archive format |
//! | `state.msgpack` | values of the program, and the random numbers of all ranks |
//! | `checkpoint.json` | epoch, batch and step, and the length and checksum of every file, itself included |
//!
//! It is there whole or not at all: the main rank writes it under another name, brings it to the disk and renames it. A
//! checkpoint with a damaged byte is refused with its reason, and the one before it is used. Nothing but the main rank writes.
//!
//! # Going on with another number of ranks
//!
//! Weights, optimizers and values are those of all ranks, so they fit any number. In the middle of an epoch the batches done
//! are counted anew, for as many samples as were done; a remainder is rounded down. The order of the samples does not depend on
//! the number of ranks, with one exception: a single process without `batch = "global"` has tch's own order, so going from one
//! to several or back mixes two orders in that one epoch, which is said in a line. Rank 0 keeps its random numbers; the
//! others, whose numbers belonged to ranks that are no longer the same, get new ones from seed, step and rank.
mod digest;
mod folder;
mod manifest;
mod progress;
mod restoring;
mod saving;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use progress::{Batches, EpochNumber, Epochs, Progress};
pub use restoring::Restoring;
pub use saving::Saving;

use crate::control::Operation;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::options::Batch;
use crate::output;
use crate::random::RngState;
use crate::session;
use folder::Partial;
use manifest::Manifest;
use progress::{Mark, Position};
use saving::RankRandom;

/// The checkpoints of a run, in a folder of their own.
///
/// See the [module](self) for the whole picture.
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    /// Checkpoints that were found damaged.
    refused: RefCell<Vec<String>>,
}

impl Checkpoints {
    /// Checkpoints in `folder`, which is made with the first one. The three newest are kept.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), keep: 3, refused: RefCell::default() }
    }

    /// Keeps the newest `count` checkpoints, at least one.
    #[must_use]
    pub fn keep(self, count: usize) -> Self {
        Self { keep: count.max(1), ..self }
    }

    /// Saves `progress`, the random numbers of all ranks, and what `parts` gives. Returns the checkpoint's path.
    ///
    /// All ranks must call it, and all return when it is complete; the main rank writes. A failure (a full disk) is the result
    /// of all ranks, leaves the earlier checkpoints alone, and training can go on.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when it cannot be written, with the rank's text; [`Error::Mismatch`] when the ranks are in
    /// different places or give different parts, or one is elsewhere.
    pub fn save(
        &self,
        progress: &Progress,
        parts: impl FnOnce(&mut Saving) -> Result<()>,
    ) -> Result<PathBuf> {
        let Some(session) = session::current() else {
            let mark = progress.mark()?;
            let partial = self.begin(mark.position.step)?;
            let mut saving = Saving::new(Some(partial.path()));
            parts(&mut saving)?;
            let random = vec![RankRandom { start: mark.start, now: mark.now }];
            let manifest = sealed(saving, &partial, mark.position, random)?;
            return self.complete(&manifest, partial);
        };
        let is_main = session.topology().is_main();
        let own = progress.mark();
        let step = own.as_ref().map_or(0, |mark| mark.position.step);
        let partial = if is_main { self.begin(step).map(Some) } else { Ok(None) };
        let (partial, failure) = match partial {
            Ok(partial) => (partial, None),
            Err(error) => (None, Some(error)),
        };
        let mut saving = Saving::new(partial.as_ref().map(Partial::path));
        let failure = failure.or(parts(&mut saving).err());
        let word = Word::new(own, failure, saving.parts());
        let outcome = session.collective(Operation::Checkpoint, 0, |group| {
            let words = exchange(group, &word)?;
            if let Some(failure) = first_failure(&words) {
                return Ok(Err(failure));
            }
            let (position, random) = agree(words)?;
            let written = partial.map(|partial| {
                let manifest = sealed(saving, &partial, position, random)?;
                self.complete(&manifest, partial)
            });
            let told = match written {
                None => Ok(String::new()),
                Some(Ok(path)) => Ok(path.display().to_string()),
                Some(Err(error)) => Err(error.to_string()),
            };
            let told: Vec<std::result::Result<String, String>> = exchange(group, &told)?;
            Ok(told.into_iter().next().unwrap_or(Ok(String::new())))
        })?;
        outcome.map(PathBuf::from).map_err(|what| self.failed(what))
    }

    /// Goes on from the newest whole checkpoint, which `restore` reads, on all ranks; begins where there is none.
    ///
    /// All ranks must call it, after everything that `restore` fills was made. All of them go on from one and the same
    /// checkpoint, which the main rank chooses: damaged ones are named and passed over.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a rank sees other checkpoints than the others; [`Error::Checkpoint`] when there are some but
    /// none is whole, and what `restore` returns on any rank.
    pub fn resume(&self, restore: impl FnOnce(&mut Restoring) -> Result<()>) -> Result<Progress> {
        let session = session::current();
        let ranks = session.as_ref().map_or(1, |session| session.topology().world_size);
        let rank = session.as_ref().map_or(0, |session| session.topology().rank);
        let shared =
            session.as_ref().is_some_and(|session| session.options().batch == Batch::Global);
        let chosen = match &session {
            None => self.newest()?,
            Some(session) => {
                session.collective(Operation::Resume, 0, |group| self.choose(group))?
            }
        };
        let Some(name) = chosen else { return Progress::new(ranks, shared) };
        let path = self.folder.join(&name);
        let restored = Manifest::read(&path)
            .map_err(|what| Error::checkpoint(&path, what, "resume again"))
            .and_then(|(manifest, _)| Restoring::open(path, manifest))
            .and_then(|mut restoring| restore(&mut restoring).map(|()| restoring));
        let restored = match &session {
            None => restored?,
            Some(session) => {
                let own = restored.as_ref().err().map(ToString::to_string);
                let told =
                    session.collective(Operation::Resume, 1, |group| exchange(group, &own))?;
                let other =
                    told.iter().enumerate().find_map(|(rank, text)| Some((rank, text.as_ref()?)));
                match (restored, other) {
                    (Ok(restored), None) => restored,
                    (Err(error), _) => return Err(error),
                    (Ok(_), Some((rank, text))) => {
                        return Err(self.failed(format!("rank {rank}: {text}")));
                    }
                }
            }
        };
        Progress::resumed(mark_of(&restored, rank, ranks)?, ranks, shared)
    }

    fn begin(&self, step: u64) -> Result<Partial> {
        Partial::begin(&self.folder, step).map_err(|error| self.failed(error.to_string()))
    }

    /// The manifest, the disk, the name; then what is too old goes.
    fn complete(&self, manifest: &str, partial: Partial) -> Result<PathBuf> {
        let failed = |error: std::io::Error| self.failed(error.to_string());
        std::fs::write(partial.path().join(manifest::FILE), manifest).map_err(failed)?;
        let path = partial.complete().map_err(failed)?;
        if let Err(error) = folder::prune(&self.folder, self.keep, &self.refused.borrow()) {
            output::notice(format_args!("removing old checkpoints: {error}"));
        }
        Ok(path)
    }

    fn failed(&self, what: String) -> Error {
        Error::checkpoint(&self.folder, what, "the earlier checkpoints are as they were")
    }

    /// The newest checkpoint that is whole, and a line for each damaged one that is passed over.
    fn newest(&self) -> Result<Option<String>> {
        folder::tidy(&self.folder);
        let entries =
            folder::entries(&self.folder).map_err(|error| self.failed(error.to_string()))?;
        let mut reasons = Vec::new();
        for entry in entries.into_iter().rev() {
            match check(&self.folder.join(&entry.name)) {
                Ok(()) => return Ok(Some(entry.name)),
                Err(why) => {
                    output::notice(format_args!("checkpoint {} is refused: {why}", entry.name));
                    reasons.push(format!("{}: {why}", entry.name));
                    self.refused.borrow_mut().push(entry.name);
                }
            }
        }
        match reasons.is_empty() {
            true => Ok(None),
            false => Err(Error::checkpoint(
                &self.folder,
                format!("none of the checkpoints is whole ({})", reasons.join("; ")),
                "restore one, or remove them all to begin anew",
            )),
        }
    }

    /// The checkpoint that the main rank has chosen, if all ranks see what it sees.
    fn choose(&self, group: &mut Group) -> Result<Option<String>> {
        let own = if group.topology().is_main() { self.newest() } else { Ok(None) };
        let (choice, failure) = match own {
            Ok(choice) => (choice, None),
            Err(error) => (None, Some(error)),
        };
        let seen = self.seen()?;
        let sight = Sight { choice, failure: failure.as_ref().map(ToString::to_string), seen };
        let sights = exchange(group, &sight)?;
        let Some(main) = sights.first() else { return Ok(None) };
        if let Some(other) = sights
            .iter()
            .position(|sight| sight.newer_than_choice(main) != main.newer_than_choice(main))
        {
            let (folder, here) = (self.folder.display(), group.topology().rank);
            return Err(Error::mismatch(
                format!(
                    "rank 0 sees {} in {folder}, rank {other} sees {} (this is rank {here})",
                    main.shown(),
                    sights[other].shown()
                ),
                "put checkpoints on a disk that all ranks share",
            ));
        }
        match (failure, &main.failure) {
            (Some(error), _) => Err(error),
            (None, Some(text)) => Err(self.failed(format!("rank 0: {text}"))),
            (None, None) => Ok(main.choice.clone()),
        }
    }

    /// All checkpoints, each with the checksum of its manifest if that can be read.
    fn seen(&self) -> Result<Vec<(String, Option<String>)>> {
        let entries =
            folder::entries(&self.folder).map_err(|error| self.failed(error.to_string()))?;
        let seen = entries.into_iter().map(|entry| {
            let manifest = Manifest::read(&self.folder.join(&entry.name)).ok();
            (entry.name, manifest.map(|(_, digest)| digest.text().to_owned()))
        });
        Ok(seen.collect())
    }
}

/// What a rank sees in the folder.
#[derive(Serialize, Deserialize)]
struct Sight {
    choice: Option<String>,
    failure: Option<String>,
    seen: Vec<(String, Option<String>)>,
}

impl Sight {
    /// What counts: the main rank's choice and all that is newer.
    fn newer_than_choice(&self, main: &Self) -> &[(String, Option<String>)] {
        let begin = main.choice.as_ref().map_or(0, |choice| {
            self.seen.iter().position(|(name, _)| name >= choice).unwrap_or(self.seen.len())
        });
        &self.seen[begin..]
    }

    fn shown(&self) -> String {
        match self.seen.last() {
            Some((name, Some(_))) => format!("{name} as the newest"),
            Some((name, None)) => format!("{name}, which it cannot read, as the newest"),
            None => "no checkpoint".to_owned(),
        }
    }
}

/// What a rank says before the main rank completes a checkpoint.
#[derive(Serialize, Deserialize)]
struct Word {
    failure: Option<String>,
    parts: String,
    position: Position,
    random: Option<RankRandom>,
}

impl Word {
    fn new(mark: Result<Mark>, failure: Option<Error>, parts: String) -> Self {
        let failure = failure.map(|error| error.to_string());
        match mark {
            Ok(Mark { position, start, now }) => {
                Self { failure, parts, position, random: Some(RankRandom { start, now }) }
            }
            Err(error) => Self {
                failure: failure.or(Some(error.to_string())),
                parts,
                position: Position::default(),
                random: None,
            },
        }
    }
}

fn first_failure(words: &[Word]) -> Option<String> {
    let failures = words.iter().enumerate();
    failures
        .into_iter()
        .find_map(|(rank, word)| Some(format!("rank {rank}: {}", word.failure.as_ref()?)))
}

/// The place and the parts that all ranks name, and everyone's random numbers.
fn agree(words: Vec<Word>) -> Result<(Position, Vec<RankRandom>)> {
    let Some(first) = words.first() else {
        return Err(Error::mismatch(
            "no rank saves",
            "start all ranks from one and the same binary",
        ));
    };
    let position = first.position;
    let differs = |word: &&Word| word.position != position || word.parts != first.parts;
    if let Some(rank) = words.iter().position(|word| differs(&word)) {
        let shown = |word: &Word| {
            let at = word.position;
            format!("[{}] at step {} (epoch {}, batch {})", word.parts, at.step, at.epoch, at.done)
        };
        return Err(Error::mismatch(
            format!("rank 0 saves {}, rank {rank} saves {}", shown(first), shown(&words[rank])),
            "save the same parts after the same step on all ranks",
        ));
    }
    Ok((position, words.into_iter().filter_map(|word| word.random).collect()))
}

/// The text of the manifest, once all other files are written.
fn sealed(
    saving: Saving,
    partial: &Partial,
    position: Position,
    random: Vec<RankRandom>,
) -> Result<String> {
    let written = saving.finish(partial.path(), manifest::STATE_FILE, random)?;
    let mut manifest = Manifest::new(position);
    manifest.files = written.files;
    manifest.optimizers = written.optimizers;
    manifest.values = written.values;
    manifest.seal().map_err(|what| Error::checkpoint(partial.path(), what, "save other values"))
}

/// Whether the checkpoint at `path` is whole.
fn check(path: &Path) -> std::result::Result<(), String> {
    let (manifest, _) = Manifest::read(path)?;
    manifest.verify(path)?;
    restoring::read_state(&manifest, path).map(drop)
}

/// Where a rank goes on, and with which random numbers.
fn mark_of(restored: &Restoring, rank: usize, ranks: usize) -> Result<Mark> {
    let (position, random) = (restored.position(), restored.random());
    let own = match random.get(rank) {
        Some(own) if random.len() == ranks => own.clone(),
        // A job with another number of ranks: rank 0 goes on, the others get new numbers.
        _ if rank == 0 => {
            let first = random[0].clone();
            RankRandom { start: first.start.owned(), now: first.now.owned() }
        }
        _ => {
            let seed = random[0].now.seed();
            let derive = |salt| RngState::derived(seed, salt, rank);
            RankRandom { start: derive(2 * position.step)?, now: derive(2 * position.step + 1)? }
        }
    };
    Ok(Mark { position, start: own.start, now: own.now })
}

/// Every rank's value, in the order of the ranks.
fn exchange<T: Serialize + for<'de> Deserialize<'de>>(
    group: &mut Group,
    own: &T,
) -> Result<Vec<T>> {
    let broken = |error: &dyn std::fmt::Display| {
        Error::mismatch(
            format!("a message of a checkpoint cannot be read: {error}"),
            "start all ranks from one and the same binary",
        )
    };
    let bytes = rmp_serde::to_vec_named(own).map_err(|error| broken(&error))?;
    let (control, watch) = group.control();
    let all = control.gather_bytes(watch, &bytes)?;
    all.iter().map(|bytes| rmp_serde::from_slice(bytes).map_err(|error| broken(&error))).collect()
}
