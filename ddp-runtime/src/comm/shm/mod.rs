//! Shared memory: the CPU ranks of one host reduce buckets where they lie, without a copy and without a socket.
//!
//! - `segment`: memory that several processes see; `pool`: those of this rank; `memory`: what a backward is lent of it;
//! - `ring`: where the ranks meet (the protocol is a note there);
//! - `kernel`: the arithmetic;
//! - `state`: what is under way.
//!
//! There is no thread: an operation is carried on by whoever looks at it, in the hooks of a backward ([`Shm::progress`]) and while
//! waiting. Buckets are allocated here ([`Shm::allocate`]) and reduced in place; other tensors go through segments piece by piece.
// Shared memory is raw memory: each access names the step of the protocol that makes it this rank's.
#![allow(unsafe_code)]

mod kernel;
mod memory;
mod pool;
mod ring;
mod segment;
mod state;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tch::{Kind, Tensor};

use super::{Communicator, ReduceOp, Work, bytes_of, lock, wait_within};
use crate::bridge::{BridgeError, tensor_over};
use crate::control::Control;
use crate::error::Result as GroupResult;
use crate::watch::Watch;
pub(crate) use memory::GradientMemory;
use pool::Pool;
use ring::Ring;
use segment::{Segment, Ticket};
use state::{NAP, Operation, Outside, State, Task};

type Result<T> = std::result::Result<T, BridgeError>;

/// Bytes of a piece: few enough to stay in a core's cache from the copy into a segment to the sum.
const PIECE: usize = 1 << 20;
/// The most pieces of a tensor, well below the operations that can be under way.
const PIECES: usize = 256;

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

/// The transport.
pub(crate) struct Shm {
    state: Arc<Mutex<State>>,
    memory: Arc<GradientMemory>,
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
        let memory = Arc::new(GradientMemory::new(Arc::clone(&pool)));
        let state = State::open(place, pids, ticket, pool);
        let problem = state.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problems = control.gather_texts(watch, &problem)?;
        // The ring's own segment may close now: everyone has mapped it.
        drop(own);
        let first = problems.iter().enumerate().find(|(_, text)| !text.is_empty());
        Ok(match (first, state) {
            (None, Ok(state)) => Ok(Self { state: Arc::new(Mutex::new(state)), memory }),
            (Some((rank, text)), _) => Err(format!("rank {rank}: {text}")),
            (None, Err(error)) => Err(error.to_string()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A task on all of the tensor, in pieces of so many bytes: the same number on all ranks, wherever their tensors lie. What
    /// lies in no segment goes through one, and so does the result with `write_back`.
    fn issue(
        &self,
        (tensor, piece): (&Tensor, usize),
        task: &Task,
        scale: f64,
        write_back: bool,
    ) -> Result<Box<dyn Work>> {
        let mut state = self.lock();
        let total = bytes_of(tensor);
        let found = lock(&state.pool).find(tensor.data_ptr() as usize, total);
        let mut start = 0;
        let number = loop {
            let bytes = piece.min(total - start);
            let (data, outside) = match &found {
                Some((segment, offset)) => (Some((Arc::clone(segment), offset + start)), None),
                None => (None, Some(Outside { tensor: tensor.shallow_clone(), start, write_back })),
            };
            let operation = Operation { task: task.again(), bytes, scale, data, outside };
            let number = state.issue(operation)?;
            start += bytes;
            if start == total {
                break number;
            }
        };
        Ok(Box::new(ShmWork { number, state: Arc::clone(&self.state) }))
    }
}

/// A tensor and the bytes of the pieces in which it passes through the caches.
fn in_pieces(tensor: &Tensor) -> (&Tensor, usize) {
    (tensor, bytes_of(tensor).div_ceil(PIECES).next_multiple_of(64).max(PIECE))
}

/// A tensor as one piece.
fn whole(tensor: &Tensor) -> (&Tensor, usize) {
    (tensor, bytes_of(tensor))
}

impl Communicator for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>> {
        self.issue(in_pieces(tensor), &Task::Reduce { kind: tensor.kind(), op }, 1.0, true)
    }

    fn sum_scaled(&self, tensor: &Tensor, scale: f64) -> Result<Box<dyn Work>> {
        // Of buckets, which are reduced one after the other where they lie: one meeting for each is enough.
        let task = Task::Reduce { kind: tensor.kind(), op: ReduceOp::Sum };
        self.issue(whole(tensor), &task, scale, true)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>> {
        self.issue(in_pieces(tensor), &Task::Broadcast { root }, 1.0, true)
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>> {
        let task = Task::Gather { output: output.shallow_clone() };
        self.issue(whole(input), &task, 1.0, false)
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

    fn gradient_memory(&self) -> Option<Arc<GradientMemory>> {
        Some(Arc::clone(&self.memory))
    }

    fn trim(&self) {
        self.lock().trim();
    }

    fn progress(&self) -> Result<()> {
        self.lock().advance()
    }
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
