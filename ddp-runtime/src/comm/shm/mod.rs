//! Shared memory: the CPU ranks of one host reduce buckets where they lie, without a copy and without a socket.
//!
//! - `segment`: memory that several processes see; `pool`: those of this rank;
//! - `ring`: where the ranks meet (the protocol is a note there);
//! - `kernel`: the arithmetic.
//!
//! There is no thread: an operation is carried on by whoever looks at it, in the hooks of a backward ([`Shm::progress`]) and while
//! waiting. Buckets are allocated here ([`Shm::allocate`]) and reduced in place; other tensors go through a segment of their own.
// Shared memory is raw memory: each access names the step of the protocol that makes it this rank's.
#![allow(unsafe_code)]

mod kernel;
mod pool;
mod ring;
mod segment;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tch::{Kind, Tensor};

use super::{Communicator, ReduceOp, Work, lock, wait_within};
use crate::bridge::{BridgeError, tensor_over};
use crate::control::Control;
use crate::error::Result as GroupResult;
use crate::watch::Watch;
use pool::Pool;
use ring::{Place, Ring, SLOTS};
use segment::{Mapping, Segment, Ticket};

type Result<T> = std::result::Result<T, BridgeError>;

/// The longest sleep before looking whether the other ranks live.
const NAP: Duration = Duration::from_millis(50);

/// The ranks of one host, and this one among them.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// This rank.
    pub(crate) rank: usize,
    /// All that are here: they follow one another.
    pub(crate) ranks: Range<usize>,
}

impl Host {
    fn local_rank(&self) -> usize {
        self.rank - self.ranks.start
    }
}

/// What an operation does once all data are there.
enum Task {
    /// This rank combines its slice of everyone's `elements`.
    Reduce { kind: Kind, op: ReduceOp, elements: usize },
    /// This rank takes the root's bytes.
    Broadcast { root: usize },
    /// This rank takes everyone's bytes, one after another.
    Gather { output: Tensor },
}

/// An operation under way.
struct Operation {
    number: u64,
    task: Task,
    bytes: usize,
    /// This rank's data, kept until the operation has ended.
    data: Arc<Segment>,
    offset: usize,
    /// Where the result belongs, unless it is made in place.
    target: Option<Tensor>,
    carried_out: bool,
}

/// What the works of a group share.
struct State {
    /// The rank that is the first of this host.
    first: usize,
    /// Position on this host, from 0; so are all ranks below.
    rank: usize,
    pids: Vec<u32>,
    alive: Vec<OwnedFd>,
    ring: Ring,
    pool: Arc<Mutex<Pool>>,
    /// Mappings of other ranks' segments.
    foreign: HashMap<(usize, u64), Mapping>,
    issued: u64,
    /// Issued and not ended, in order.
    pending: VecDeque<Operation>,
}

/// The transport.
pub(crate) struct Shm {
    state: Arc<Mutex<State>>,
}

impl Shm {
    /// Sets the transport up between the ranks of each host. A text on all ranks when one of them cannot see the memory of
    /// another one of its host; it says so.
    pub(crate) fn connect(
        control: &mut Control,
        watch: &Watch,
        place: &Host,
    ) -> GroupResult<std::result::Result<Self, String>> {
        Self::with_pool(control, watch, place, Arc::default())
    }

    /// Another one between the same ranks, in an order of its own, for data that lie in the same segments.
    pub(crate) fn another(
        &self,
        control: &mut Control,
        watch: &Watch,
        place: &Host,
    ) -> GroupResult<std::result::Result<Self, String>> {
        Self::with_pool(control, watch, place, Arc::clone(&self.lock().pool))
    }

    fn with_pool(
        control: &mut Control,
        watch: &Watch,
        place: &Host,
        pool: Arc<Mutex<Pool>>,
    ) -> GroupResult<std::result::Result<Self, String>> {
        let size = Ring::bytes(place.ranks.len());
        let own = (place.local_rank() == 0).then(|| Segment::new(size, 0)).transpose();
        let ticket = own.as_ref().ok().and_then(|own| own.as_ref()).map(Segment::ticket);
        let ticket = ticket.unwrap_or(Ticket { serial: 0, fd: 0, bytes: 0 });
        let words =
            [i64::from(std::process::id()), i64::from(ticket.fd), ticket.bytes.cast_signed()];
        let all = control.gather_words(watch, &words)?;
        let all = &all[place.ranks.clone()];
        let pids: Vec<u32> = all.iter().map(|words| words[0] as u32).collect();
        let ticket = Ticket { serial: 0, fd: all[0][1] as u32, bytes: all[0][2].cast_unsigned() };
        let state = State::open(place, pids, ticket, pool);
        let problem = state.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problems = control.gather_texts(watch, &problem)?;
        // The ring's own segment may close now: everyone has mapped it.
        drop(own);
        let first = problems.iter().enumerate().find(|(_, text)| !text.is_empty());
        Ok(match (first, state) {
            (None, Ok(state)) => Ok(Self { state: Arc::new(Mutex::new(state)) }),
            (Some((rank, text)), _) => Err(format!("rank {rank}: {text}")),
            (None, Err(error)) => Err(error.to_string()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn issue(&self, tensor: &Tensor, task: Task, write_back: bool) -> Result<Box<dyn Work>> {
        let mut state = self.lock();
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        let (data, offset, staged) = lock(&state.pool).locate(tensor, bytes)?;
        let target = (staged && write_back).then(|| tensor.shallow_clone());
        let number = state.issue(Operation {
            number: 0,
            task,
            bytes,
            data,
            offset,
            target,
            carried_out: false,
        })?;
        Ok(Box::new(ShmWork { number, state: Arc::clone(&self.state) }))
    }
}

impl Communicator for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>> {
        let (kind, elements) = (tensor.kind(), tensor.numel());
        self.issue(tensor, Task::Reduce { kind, op, elements }, true)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>> {
        self.issue(tensor, Task::Broadcast { root }, true)
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>> {
        self.issue(input, Task::Gather { output: output.shallow_clone() }, false)
    }

    fn allocate(&self, elements: usize, kind: Kind) -> Result<Option<Tensor>> {
        let bytes = elements * kind.elt_size_in_bytes();
        let segment = lock(&self.lock().pool).segment(bytes)?;
        let data = segment.mapping().start();
        // SAFETY: the segment spans the bytes, and nobody else holds it. It may have been used before.
        unsafe { std::ptr::write_bytes(data, 0, bytes) };
        // SAFETY: the segment spans the elements, is aligned to a page, and lives as long as the tensor holds it.
        unsafe { tensor_over(data, elements, kind, segment) }.map(Some)
    }

    fn trim(&self) {
        let mut state = self.lock();
        // Opened again where an operation needs one.
        state.foreign.clear();
        lock(&state.pool).trim();
    }

    fn progress(&self) -> Result<()> {
        self.lock().advance()
    }
}

impl State {
    fn open(place: &Host, pids: Vec<u32>, ticket: Ticket, pool: Arc<Mutex<Pool>>) -> Result<Self> {
        let alive = pids
            .iter()
            .map(|&pid| {
                let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let id = id.ok_or_else(|| BridgeError::new(format!("{pid} is no process")))?;
                pidfd_open(id, PidfdFlags::empty())
                    .map_err(|error| BridgeError::new(format!("watching process {pid}: {error}")))
            })
            .collect::<Result<Vec<_>>>()?;
        let mapping = segment::open(pids[0], ticket)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let ring = Ring::new(mapping, pids.len(), pids.len() > cores);
        Ok(Self {
            first: place.ranks.start,
            rank: place.local_rank(),
            ring,
            alive,
            pids,
            pool,
            foreign: HashMap::new(),
            issued: 0,
            pending: VecDeque::new(),
        })
    }

    fn issue(&mut self, operation: Operation) -> Result<u64> {
        let number = self.issued;
        // A slot is free again when its last operation has ended here.
        let started = Instant::now();
        while self.pending.front().is_some_and(|oldest| oldest.number + SLOTS as u64 <= number) {
            self.carry_on(NAP)?;
            if started.elapsed() > Duration::from_secs(600) {
                return Err(BridgeError::new("the oldest operation under way does not end"));
            }
        }
        self.issued += 1;
        let place = Place { ticket: operation.data.ticket(), offset: operation.offset as u64 };
        self.ring.arrive(number, self.rank, place);
        self.pending.push_back(Operation { number, ..operation });
        self.advance()?;
        Ok(number)
    }

    fn ended(&self, number: u64) -> bool {
        self.pending.front().is_none_or(|oldest| oldest.number > number)
    }

    /// Does what can be done without waiting.
    fn advance(&mut self) -> Result<()> {
        for index in 0..self.pending.len() {
            let number = self.pending[index].number;
            if self.pending[index].carried_out {
                continue;
            }
            if !self.ring.all_arrived(number) {
                break;
            }
            self.carry_out(index)?;
            self.pending[index].carried_out = true;
            self.ring.finish(number);
        }
        while self.pending.front().is_some_and(|oldest| self.ring.all_finished(oldest.number)) {
            if let Some(operation) = self.pending.pop_front() {
                deliver(&operation)?;
            }
        }
        Ok(())
    }

    /// Waits a little for the oldest operation, and does what can be done then.
    fn carry_on(&mut self, limit: Duration) -> Result<()> {
        let waited = match self.pending.iter().find(|operation| !operation.carried_out) {
            Some(next) => self.ring.wait_arrived(next.number, limit),
            None => match self.pending.front() {
                Some(oldest) => self.ring.wait_finished(oldest.number, limit),
                None => true,
            },
        };
        self.advance()?;
        if waited {
            return Ok(());
        }
        let alive = self.check_alive();
        if alive.is_err() {
            // A rank that has ended may have done its part before: what it left undone is what counts.
            let before = self.pending.len();
            self.advance()?;
            if self.pending.is_empty() || self.pending.len() < before {
                return Ok(());
            }
        }
        alive
    }

    /// An error when a rank's process has ended while this one waits for it.
    fn check_alive(&self) -> Result<()> {
        let mut fds: Vec<PollFd> =
            self.alive.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok_and(|ended| ended > 0) {
            let rank = fds.iter().position(|fd| !fd.revents().is_empty()).unwrap_or_default();
            return Err(BridgeError::new(format!(
                "the process of rank {} has ended",
                self.first + rank
            )));
        }
        Ok(())
    }

    /// Where a rank's data of an operation begin in this process.
    fn data_of(&mut self, operation: &Operation, rank: usize) -> Result<*mut u8> {
        if rank == self.rank {
            // SAFETY: `locate` found the offset within the segment.
            return Ok(unsafe { operation.data.mapping().start().add(operation.offset) });
        }
        let Place { ticket, offset } = self.ring.place(operation.number, rank);
        if offset + operation.bytes as u64 > ticket.bytes {
            return Err(BridgeError::new(format!(
                "rank {} offers {} bytes where {} are needed",
                self.first + rank,
                ticket.bytes.saturating_sub(offset),
                operation.bytes
            )));
        }
        let key = (rank, ticket.serial);
        if !self.foreign.contains_key(&key) {
            self.foreign.insert(key, segment::open(self.pids[rank], ticket)?);
        }
        // SAFETY: within the mapping, by the comparison above and `open`, which compares the sizes.
        Ok(unsafe { self.foreign[&key].start().add(offset as usize) })
    }

    /// Step 2 of an operation: all data are there, and are this rank's to read, and in its own slice to write.
    fn carry_out(&mut self, index: usize) -> Result<()> {
        // Taken out, so that mappings may be added meanwhile.
        let operation = self.pending.remove(index);
        let Some(operation) = operation else { return Ok(()) };
        let result = self.carry_out_task(&operation);
        self.pending.insert(index, operation);
        result
    }

    fn carry_out_task(&mut self, operation: &Operation) -> Result<()> {
        let world_size = self.pids.len();
        match &operation.task {
            Task::Reduce { kind, op, elements } => {
                let (start, end) = slice(*elements, self.rank, world_size);
                let size = kind.elt_size_in_bytes();
                let parts = (0..world_size)
                    // SAFETY: the slice lies within the elements.
                    .map(|rank| Ok(unsafe { self.data_of(operation, rank)?.add(start * size) }))
                    .collect::<Result<Vec<_>>>()?;
                // SAFETY: step 2 gives this rank its slice of everyone's data, which lie in segments of different ranks.
                unsafe { kernel::reduce(*kind, *op, &parts, end - start) }
            }
            Task::Broadcast { root } => {
                let (from, to) =
                    (self.data_of(operation, *root)?, self.data_of(operation, self.rank)?);
                if *root != self.rank {
                    // SAFETY: different segments; the root's data are only read, its own are this rank's to write.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, operation.bytes) };
                }
                Ok(())
            }
            Task::Gather { output } => {
                let to = output.data_ptr().cast::<u8>();
                for rank in 0..world_size {
                    let from = self.data_of(operation, rank)?;
                    // SAFETY: the output spans world size times `bytes`, and is this rank's own.
                    unsafe {
                        let to = to.add(rank * operation.bytes);
                        std::ptr::copy_nonoverlapping(from, to, operation.bytes);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Brings a result to where it belongs.
fn deliver(operation: &Operation) -> Result<()> {
    if let Some(target) = &operation.target {
        let to = target.data_ptr().cast::<u8>();
        // SAFETY: the operation has ended, so the segment is this rank's; the target spans as many bytes.
        unsafe {
            let from = operation.data.mapping().start().add(operation.offset);
            std::ptr::copy_nonoverlapping(from, to, operation.bytes);
        }
    }
    Ok(())
}

/// The slice of `elements` that a rank combines: equal parts, cut at cache lines.
fn slice(elements: usize, rank: usize, world_size: usize) -> (usize, usize) {
    let part = elements.div_ceil(world_size).next_multiple_of(64);
    ((rank * part).min(elements), ((rank + 1) * part).min(elements))
}

/// An operation, for whoever waits for it.
struct ShmWork {
    number: u64,
    state: Arc<Mutex<State>>,
}

impl Work for ShmWork {
    fn is_done(&self) -> Result<bool> {
        self.wait(Duration::ZERO)
    }

    fn wait(&self, limit: Duration) -> Result<bool> {
        let mut state = lock(&self.state);
        wait_within(limit, |left| {
            if left.is_zero() {
                state.advance()?;
            } else {
                state.carry_on(left.min(NAP))?;
            }
            Ok(state.ended(self.number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_everything_once() {
        for elements in [0, 1, 63, 64, 65, 1000, 4096, 100_001] {
            for world_size in 1..7 {
                let mut next = 0;
                for rank in 0..world_size {
                    let (start, end) = slice(elements, rank, world_size);
                    assert_eq!(start, next);
                    next = end;
                }
                assert_eq!(next, elements);
            }
        }
    }
}
