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
    /// This rank combines its slice of everyone's `elements`.
    Reduce { kind: Kind, op: ReduceOp, elements: usize },
    /// This rank takes the root's bytes.
    Broadcast { root: usize },
    /// This rank takes everyone's bytes, one after another.
    Gather { output: Tensor },
}

/// An operation under way.
pub(super) struct Operation {
    pub(super) number: u64,
    pub(super) task: Task,
    pub(super) bytes: usize,
    /// This rank's data, kept until the operation has ended.
    pub(super) data: Arc<Segment>,
    pub(super) offset: usize,
    /// What a reduction multiplies them with.
    pub(super) scale: f64,
    /// Where the result belongs, unless it is made in place.
    pub(super) target: Option<Tensor>,
    pub(super) carried_out: bool,
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
    pending: VecDeque<Operation>,
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
        let place = Place {
            ticket: operation.data.ticket(),
            offset: operation.offset as u64,
            scale: operation.scale.to_bits(),
        };
        self.ring.arrive(number, self.rank, place);
        self.pending.push_back(Operation { number, ..operation });
        self.advance()?;
        Ok(number)
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
    pub(super) fn carry_on(&mut self, limit: Duration) -> Result<()> {
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
        let Place { ticket, offset, .. } = self.ring.place(operation.number, rank);
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
                let scales: Vec<f64> = (0..world_size)
                    .map(|rank| f64::from_bits(self.ring.place(operation.number, rank).scale))
                    .collect();
                // SAFETY: step 2 gives this rank its slice of everyone's data, which lie in segments of different ranks.
                unsafe { kernel::reduce(*kind, *op, &parts, &scales, end - start) }
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
