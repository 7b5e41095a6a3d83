//! What is under way on this rank, and how it is carried on: by whoever looks.
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tch::{Kind, Tensor};

use super::pool::Pool;
use super::ring::{Place, Ring, SLOTS};
use super::segment::{self, Mapping, Segment, Ticket};
use super::{Host, Result, kernel};
use crate::bridge::BridgeError;
use crate::comm::{ReduceOp, lock};

/// The longest sleep before looking whether the other ranks live.
pub(super) const NAP: Duration = Duration::from_millis(50);

/// What an operation does once all data are there.
pub(super) enum Task {
    /// This rank combines its slice of everyone's elements.
    Reduce { kind: Kind, op: ReduceOp },
    /// This rank takes the root's bytes.
    Broadcast { root: usize },
    /// This rank takes everyone's bytes, one after another.
    Gather { output: Tensor },
}

impl Task {
    /// The same, held a second time.
    pub(super) fn again(&self) -> Self {
        match self {
            &Self::Reduce { kind, op } => Self::Reduce { kind, op },
            &Self::Broadcast { root } => Self::Broadcast { root },
            Self::Gather { output } => Self::Gather { output: output.shallow_clone() },
        }
    }
}

/// Operations on data outside that have their segments at a time: one to copy while another one is combined.
const WINDOW: usize = 2;

/// What a rank wants done.
pub(super) struct Operation {
    pub(super) task: Task,
    pub(super) bytes: usize,
    /// What a reduction multiplies this rank's data with.
    pub(super) scale: f64,
    /// This rank's data and where they begin, kept until the operation has ended. None: they are outside, and get a segment
    /// when it is their turn.
    pub(super) data: Option<(Arc<Segment>, usize)>,
    pub(super) outside: Option<Outside>,
}

/// Data that lie in no segment.
pub(super) struct Outside {
    pub(super) tensor: Tensor,
    /// Their first byte in the tensor.
    pub(super) start: usize,
    /// Whether the result belongs there as well.
    pub(super) write_back: bool,
}

impl Outside {
    fn data(&self) -> *mut u8 {
        // SAFETY: `Shm::issue` cuts the tensor into pieces that begin within it.
        unsafe { self.tensor.data_ptr().cast::<u8>().add(self.start) }
    }
}

/// An operation under way.
struct Pending {
    number: u64,
    operation: Operation,
    carried_out: bool,
}

/// What the works of a group share.
pub(super) struct State {
    /// The rank that is the first of this host.
    first: usize,
    /// Position on this host, from 0; so are all ranks below.
    rank: usize,
    pids: Vec<u32>,
    alive: Vec<OwnedFd>,
    ring: Ring,
    pub(super) pool: Arc<Mutex<Pool>>,
    /// Mappings of other ranks' segments.
    foreign: HashMap<(usize, u64), Mapping>,
    issued: u64,
    /// Issued and not ended, in order.
    pending: VecDeque<Pending>,
}

impl State {
    pub(super) fn open(
        place: &Host,
        pids: Vec<u32>,
        ticket: Ticket,
        pool: Arc<Mutex<Pool>>,
    ) -> Result<Self> {
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

    pub(super) fn issue(&mut self, operation: Operation) -> Result<u64> {
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
        if let Some((segment, offset)) = &operation.data {
            self.arrive(number, segment, *offset, operation.scale);
        }
        self.pending.push_back(Pending { number, operation, carried_out: false });
        self.advance()?;
        Ok(number)
    }

    /// Step 1 of an operation: this rank's data are there.
    fn arrive(&self, number: u64, segment: &Segment, offset: usize, scale: f64) {
        let place =
            Place { ticket: segment.ticket(), offset: offset as u64, scale: scale.to_bits() };
        self.ring.arrive(number, self.rank, place);
    }

    /// Copies the next pieces of what lies outside into segments, as long as few others have one.
    fn stage(&mut self) -> Result<()> {
        let mut under_way = 0;
        for index in 0..self.pending.len() {
            let Pending { number, operation, .. } = &self.pending[index];
            let Some(outside) = &operation.outside else { continue };
            if under_way == WINDOW {
                break;
            }
            under_way += 1;
            if operation.data.is_none() {
                let segment = lock(&self.pool).segment(operation.bytes)?;
                let to = segment.mapping().start();
                // SAFETY: both span the bytes, and nobody else knows the segment.
                unsafe { std::ptr::copy_nonoverlapping(outside.data(), to, operation.bytes) };
                self.arrive(*number, &segment, 0, operation.scale);
                self.pending[index].operation.data = Some((segment, 0));
            }
        }
        Ok(())
    }

    /// Gives memory back: see [`Communicator::trim`](crate::comm::Communicator::trim).
    pub(super) fn trim(&mut self) {
        // Opened again where an operation needs one.
        self.foreign.clear();
        lock(&self.pool).trim();
    }

    pub(super) fn ended(&self, number: u64) -> bool {
        self.pending.front().is_none_or(|oldest| oldest.number > number)
    }

    /// Does what can be done without waiting.
    pub(super) fn advance(&mut self) -> Result<()> {
        loop {
            self.stage()?;
            for index in 0..self.pending.len() {
                let Pending { number, ref operation, carried_out } = self.pending[index];
                if carried_out {
                    continue;
                }
                if operation.data.is_none() || !self.ring.all_arrived(number) {
                    break;
                }
                self.carry_out(index)?;
                self.pending[index].carried_out = true;
                self.ring.finish(number);
            }
            let before = self.pending.len();
            while self.pending.front().is_some_and(|oldest| self.ring.all_finished(oldest.number)) {
                if let Some(ended) = self.pending.pop_front() {
                    deliver(&ended.operation);
                }
            }
            if self.pending.len() == before {
                return Ok(());
            }
        }
    }

    /// Waits a little for the oldest operation, and does what can be done then.
    pub(super) fn carry_on(&mut self, limit: Duration) -> Result<()> {
        // What waits for its turn to be staged is waited for once it has had it.
        let mut there = self.pending.iter().take_while(|one| one.operation.data.is_some());
        let waited = match there.find(|one| !one.carried_out) {
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
    fn data_of(&mut self, number: u64, operation: &Operation, rank: usize) -> Result<*mut u8> {
        if let Some(own) = operation.own().filter(|_| rank == self.rank) {
            return Ok(own);
        }
        let Place { ticket, offset, .. } = self.ring.place(number, rank);
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
        let Some(pending) = self.pending.remove(index) else { return Ok(()) };
        let result = self.carry_out_task(pending.number, &pending.operation);
        self.pending.insert(index, pending);
        result
    }

    fn carry_out_task(&mut self, number: u64, operation: &Operation) -> Result<()> {
        let world_size = self.pids.len();
        match &operation.task {
            Task::Reduce { kind, op } => {
                let size = kind.elt_size_in_bytes();
                let (start, end) = slice(operation.bytes / size, self.rank, world_size);
                let parts = (0..world_size)
                    .map(|rank| {
                        let data = self.data_of(number, operation, rank)?;
                        // SAFETY: the slice lies within the elements.
                        Ok(unsafe { data.add(start * size) })
                    })
                    .collect::<Result<Vec<_>>>()?;
                let scales: Vec<f64> = (0..world_size)
                    .map(|rank| f64::from_bits(self.ring.place(number, rank).scale))
                    .collect();
                // SAFETY: step 2 gives this rank its slice of everyone's data, which lie in segments of different ranks.
                unsafe { kernel::reduce(*kind, *op, &parts, &scales, end - start) }
            }
            Task::Broadcast { root } => {
                let from = self.data_of(number, operation, *root)?;
                let to = self.data_of(number, operation, self.rank)?;
                if *root != self.rank {
                    // SAFETY: different segments; the root's data are only read, its own are this rank's to write.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, operation.bytes) };
                }
                Ok(())
            }
            Task::Gather { output } => {
                let to = output.data_ptr().cast::<u8>();
                for rank in 0..world_size {
                    let from = self.data_of(number, operation, rank)?;
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

impl Operation {
    /// This rank's data, once they are in a segment.
    fn own(&self) -> Option<*mut u8> {
        let (segment, offset) = self.data.as_ref()?;
        // SAFETY: the offset is one within the segment.
        Some(unsafe { segment.mapping().start().add(*offset) })
    }
}

/// Brings a result to where it belongs.
fn deliver(operation: &Operation) {
    let outside = operation.outside.as_ref().filter(|outside| outside.write_back);
    if let (Some(from), Some(outside)) = (operation.own(), outside) {
        // SAFETY: the operation has ended, so the segment is this rank's; both span as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, outside.data(), operation.bytes) };
    }
}

/// The slice of `elements` that a rank combines: equal parts, cut at cache lines.
fn slice(elements: usize, rank: usize, world_size: usize) -> (usize, usize) {
    let part = elements.div_ceil(world_size).next_multiple_of(64);
    ((rank * part).min(elements), ((rank + 1) * part).min(elements))
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
