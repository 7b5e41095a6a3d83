//! The stream that collectives run on, what is under way there, and what has failed.
//!
//! # Note [Streams]
//!
//! Collectives run on a stream of our own, so that they overlap with the rest of the backward on libtorch's. Each is ordered
//! by two events, and the host waits for neither:
//!
//! 1. Before it, our stream waits for an event recorded at that moment on libtorch's current stream: the gradients that were
//!    just put into the bucket are complete when the collective reads them.
//! 2. After it, an event is recorded on our stream; [`hand_over`](Lane::hand_over) makes libtorch's current stream wait for it: what the
//!    program does next (clip, step) sees the result.
//!
//! tch has no streams in its API, so "libtorch's current stream" is the same one, the default stream, on every thread that
//! gets here: the one that trains, and the autograd engine's for this GPU.
//!
//! # Note [Lifetime of what is carried]
//!
//! libtorch gives freed memory to the next tensor as soon as the host lets go of it, knowing only its own stream. So what a
//! collective reads or writes is held here until libtorch's stream has been told to wait for it (any reuse comes after that),
//! or until the collective is over. Not longer: a bucket that somebody holds would be taken for one that has escaped.
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclResult_t};
use tch::{Device, Tensor};

use super::driver::{self, Event, Gpu, Stream};
use super::fault::Fault;
use super::raw::RawComm;
use crate::bridge;

/// A collective that was issued.
pub(super) struct Ticket {
    number: u64,
    done: Arc<Event>,
}

impl Ticket {
    /// What is issued on the stream from now on waits for the collective.
    pub(super) fn hold(&self, stream: CUstream) -> Result<(), Fault> {
        driver::wait(stream, &self.done)
    }
}

/// A collective that is not known to be over.
struct Pending {
    number: u64,
    name: &'static str,
    done: Arc<Event>,
    /// See Note [Lifetime of what is carried].
    kept: Vec<Tensor>,
}

#[derive(Default)]
struct State {
    issued: u64,
    pending: VecDeque<Pending>,
    /// Since when the first of them has been the first.
    since: Option<Instant>,
    failure: Option<Fault>,
    /// Whether the program has been told of the failure.
    told: bool,
}

/// One communicator, its stream, and what was issued on it.
pub(super) struct Lane {
    // In the order in which they have to go: the communicator uses the stream, both live on the GPU.
    comm: RawComm,
    stream: Stream,
    gpu: Gpu,
    device: Device,
    /// The longest time that a collective may take.
    limit: Duration,
    state: Mutex<State>,
}

impl Lane {
    pub(super) fn new(
        comm: RawComm,
        stream: Stream,
        gpu: Gpu,
        device: Device,
        limit: Duration,
    ) -> Self {
        Self { comm, stream, gpu, device, limit, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream that collectives run on.
    #[cfg(test)]
    pub(super) fn stream(&self) -> CUstream {
        self.stream.raw()
    }

    /// Makes the rank's GPU current on this thread.
    pub(super) fn bind(&self) -> Result<(), Fault> {
        self.gpu.bind()
    }

    /// The stream that this thread's work on the device runs on.
    fn current_stream(&self) -> Result<CUstream, Fault> {
        match self.device {
            Device::Cuda(ordinal) => bridge::current_stream(ordinal)
                .map(|stream| stream.cast())
                .map_err(|error| Fault::Device(error.to_string())),
            // Device memory is host memory: the work is the host's own.
            _ => Ok(null_mut()),
        }
    }

    /// Issues a collective behind all that this thread has done on the device so far. See Note [Streams].
    pub(super) fn issue(
        &self,
        name: &'static str,
        kept: Vec<Tensor>,
        launch: impl FnOnce(ncclComm_t, cudaStream_t) -> ncclResult_t,
    ) -> Result<Ticket, Fault> {
        self.check()?;
        let current = self.bind().and_then(|()| self.current_stream())?;
        self.issue_behind(current, name, kept, launch).inspect_err(|fault| self.fail(fault))
    }

    /// As [`issue`](Self::issue), behind what was issued on the stream `before`.
    pub(super) fn issue_behind(
        &self,
        before: CUstream,
        name: &'static str,
        kept: Vec<Tensor>,
        launch: impl FnOnce(ncclComm_t, cudaStream_t) -> ncclResult_t,
    ) -> Result<Ticket, Fault> {
        self.stream.wait(&Event::after(before)?)?;
        let stream = self.stream.raw();
        self.comm.call(name, self.limit, |comm| launch(comm, stream.cast()))?;
        let done = Arc::new(Event::after(stream)?);
        let mut state = self.lock();
        state.issued += 1;
        let number = state.issued;
        state.pending.push_back(Pending { number, name, done: Arc::clone(&done), kept });
        state.since.get_or_insert_with(Instant::now);
        Ok(Ticket { number, done })
    }

    /// Makes the stream of this thread wait for a collective, and lets go of what it carries. The host goes on.
    pub(super) fn hand_over(&self, ticket: &Ticket) -> Result<(), Fault> {
        self.check()?;
        let current = self.bind().and_then(|()| self.current_stream())?;
        ticket.hold(current)?;
        self.let_go(ticket);
        self.check()
    }

    /// Whether a collective is over.
    pub(super) fn is_done(&self, ticket: &Ticket) -> Result<bool, Fault> {
        self.check()?;
        let done = ticket.done.is_done()?;
        if done {
            self.let_go(ticket);
        }
        Ok(done)
    }

    fn let_go(&self, ticket: &Ticket) {
        let mut state = self.lock();
        let kept = state
            .pending
            .iter_mut()
            .find(|pending| pending.number == ticket.number)
            .map(|pending| std::mem::take(&mut pending.kept));
        drop(state);
        drop(kept);
    }

    /// The failure, if there was one; the program hears of it by this.
    fn check(&self) -> Result<(), Fault> {
        let mut state = self.lock();
        match state.failure.clone() {
            Some(fault) => {
                state.told = true;
                Err(fault)
            }
            None => Ok(()),
        }
    }

    /// Whether there was a failure that the program has not been told of yet.
    pub(super) fn untold(&self) -> Option<Fault> {
        let state = self.lock();
        if state.told { None } else { state.failure.clone() }
    }

    fn fail(&self, fault: &Fault) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.failure = Some(fault.clone());
        }
        state.told = true;
    }

    /// Keeps a failure that nobody has asked for, and ends what is under way. The first failure stands.
    pub(super) fn give_up(&self, fault: Fault) {
        self.lock().failure.get_or_insert(fault);
        // The failure first: an operation that ends because of the abort must not look like a success.
        self.comm.abort();
    }

    /// Looks at what is under way: what is over is let go of, what has failed or takes too long is the error.
    pub(super) fn look(&self) -> Result<(), Fault> {
        if self.lock().failure.is_some() {
            return Ok(());
        }
        // A failure that NCCL has noted by itself; how far the collectives are, their events tell.
        self.comm.progress("a collective")?;
        let mut over = Vec::new();
        let mut state = self.lock();
        while let Some(first) = state.pending.front() {
            if !first.done.is_done()? {
                break;
            }
            over.extend(state.pending.pop_front());
            state.since = state.pending.front().map(|_| Instant::now());
        }
        let late = state.since.is_some_and(|since| since.elapsed() > self.limit);
        let name = state.pending.front().map_or("a collective", |pending| pending.name);
        drop(state);
        // Tensors go without the lock: what hangs on them is not ours.
        drop(over);
        match late {
            true => Err(Fault::Timeout { what: name.to_owned(), limit: self.limit }),
            false => Ok(()),
        }
    }

    /// Waits for what is under way, then lets go of the communicator; after a failure it is aborted instead.
    pub(super) fn close(&self, limit: Duration) {
        if self.lock().failure.is_none() && self.bind().is_ok() {
            let deadline = Instant::now() + limit;
            while self.look().is_ok()
                && !self.lock().pending.is_empty()
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.lock().pending.is_empty() && self.comm.finish(limit).is_ok() {
                return;
            }
        }
        // All ranks have left already: there is nobody to be told.
        self.comm.abort();
    }
}
