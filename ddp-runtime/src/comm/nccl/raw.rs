//! The communicator itself: made without blocking, finished or aborted exactly once, from whatever thread that is.
//!
//! # Note [Who calls NCCL]
//!
//! A communicator has one caller at a time: `lock` is held during every call. Since the communicator does not block, a call
//! returns at once, and is over when `ncclCommGetAsyncError` no longer says that it is in progress; until then no other may
//! follow. The one exception is the abort, which NCCL allows while another thread is inside a call: a launch can block after
//! all, when a collective hangs and the GPU's queue has filled up behind it. So the abort waits for the lock only for a moment.
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{self, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

use super::fault::{Fault, Progress, nccl};

/// Bytes of a unique id.
pub(super) const ID_BYTES: usize = 128;
/// How often a call in progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long an abort waits for a call that is under way.
const BEFORE_ABORT: Duration = Duration::from_secs(1);
/// The value of an attribute that is left to NCCL.
const UNDEFINED: c_int = c_int::MIN;

/// What tells the ranks of a communicator where to meet.
pub(super) fn unique_id() -> Result<[u8; ID_BYTES], Fault> {
    let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: the id is written during the call.
    nccl("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&mut id) }, null_mut())?;
    // The C type is that of characters, the content any bytes.
    Ok(id.internal.map(|character| character.to_ne_bytes()[0]))
}

/// A communicator that does not block, with nothing else to set.
fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        // The version that the fields are of; any later one knows how to read them, an earlier one reads fewer.
        version: 22400,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: null_mut(),
        splitShare: UNDEFINED,
    }
}

/// This rank's end of a communicator. Dropping one that was not finished aborts it.
pub(super) struct RawComm {
    comm: ncclComm_t,
    lock: Mutex<()>,
    /// Whether `comm` is gone: finished or aborted.
    gone: AtomicBool,
}

// SAFETY: see Note [Who calls NCCL]: calls are made under the lock, but for the abort, which NCCL allows at any time.
unsafe impl Send for RawComm {}
// SAFETY: as above.
unsafe impl Sync for RawComm {}

impl RawComm {
    /// Joins the other ranks. `go_on` is asked all the while, and ends the attempt with its error.
    ///
    /// The rank's GPU is current on this thread.
    pub(super) fn join(
        id: [u8; ID_BYTES],
        rank: usize,
        world_size: usize,
        limit: Duration,
        go_on: &dyn Fn() -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        const CALL: &str = "ncclCommInitRankConfig";
        let id = ncclUniqueId { internal: id.map(|byte| c_char::from_ne_bytes([byte])) };
        let (size, rank) = (number(world_size)?, number(rank)?);
        let (mut raw, mut config) = (null_mut(), config());
        // SAFETY: `raw` is written during the call; the configuration is only read during it.
        let result = unsafe { sys::ncclCommInitRankConfig(&mut raw, size, id, rank, &mut config) };
        let comm = Self { comm: raw, lock: Mutex::new(()), gone: AtomicBool::new(raw.is_null()) };
        // From here on a failure drops `comm`, which aborts what has been begun.
        nccl(CALL, result, raw)?;
        let deadline = Instant::now() + limit;
        while comm.progress(CALL)? == Progress::InProgress {
            go_on()?;
            if Instant::now() > deadline {
                return Err(Fault::Timeout { what: CALL.to_owned(), limit });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(comm)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle, as long as there is one. The lock is held.
    fn alive(&self, _lock: &MutexGuard<'_, ()>) -> Result<ncclComm_t, Fault> {
        if self.gone.load(Ordering::Acquire) { Err(Fault::Aborted) } else { Ok(self.comm) }
    }

    /// Whether the last call is over, or what has failed since. `call` is what the failure is put down to.
    pub(super) fn progress(&self, call: &'static str) -> Result<Progress, Fault> {
        let lock = self.lock();
        let comm = self.alive(&lock)?;
        progress(call, comm)
    }

    /// Makes one call, and waits until it is over: not for the GPU, but for NCCL's own threads to have launched it.
    ///
    /// `body` makes calls with the handle; pointers that it passes on stay valid until the collective is over.
    pub(super) fn call(
        &self,
        name: &'static str,
        limit: Duration,
        body: impl FnOnce(ncclComm_t) -> ncclResult_t,
    ) -> Result<(), Fault> {
        let lock = self.lock();
        let comm = self.alive(&lock)?;
        let mut state = nccl(name, body(comm), comm)?;
        let deadline = Instant::now() + limit;
        while state == Progress::InProgress {
            // The abort does not wait for ever for the lock that is held here.
            let comm = self.alive(&lock)?;
            state = progress(name, comm)?;
            if Instant::now() > deadline {
                return Err(Fault::Timeout { what: name.to_owned(), limit });
            }
            if state == Progress::InProgress {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Lets go of a communicator on which nothing is under way any more. All ranks do so.
    pub(super) fn finish(&self, limit: Duration) -> Result<(), Fault> {
        // SAFETY: the communicator is alive; nothing is issued on it after this.
        self.call("ncclCommFinalize", limit, |comm| unsafe { sys::ncclCommFinalize(comm) })?;
        let lock = self.lock();
        let comm = self.alive(&lock)?;
        self.gone.store(true, Ordering::Release);
        // SAFETY: finalized, and not used again since `gone` is set under the lock.
        nccl("ncclCommDestroy", unsafe { sys::ncclCommDestroy(comm) }, null_mut())?;
        Ok(())
    }

    /// Ends what is under way on the GPU, on this rank, without waiting for the others. A second call does nothing.
    pub(super) fn abort(&self) {
        let deadline = Instant::now() + BEFORE_ABORT;
        let _lock = loop {
            match self.lock.try_lock() {
                Ok(lock) => break Some(lock),
                Err(TryLockError::Poisoned(lock)) => break Some(lock.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > deadline => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
            }
        };
        if !self.gone.swap(true, Ordering::AcqRel) {
            // SAFETY: alive until here, and not used after it: see Note [Who calls NCCL]. What it returns tells nothing new.
            let _ = unsafe { sys::ncclCommAbort(self.comm) };
        }
    }
}

impl Drop for RawComm {
    fn drop(&mut self) {
        self.abort();
    }
}

fn progress(call: &'static str, comm: ncclComm_t) -> Result<Progress, Fault> {
    let mut state = ncclResult_t::ncclSuccess;
    // SAFETY: the communicator is alive; the state is written during the call.
    let asked = unsafe { sys::ncclCommGetAsyncError(comm, &mut state) };
    nccl("ncclCommGetAsyncError", asked, comm)?;
    nccl(call, state, comm)
}

/// Makes one call for each part, all of them one launch. The group is closed whatever they return; the first failure counts.
pub(super) fn each_in_one_group<T>(
    parts: &[T],
    mut call: impl FnMut(&T) -> ncclResult_t,
) -> ncclResult_t {
    let is_ok = |result| matches!(result, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress);
    if let [part] = parts {
        return call(part);
    }
    // SAFETY: closed below, on the same thread.
    let begun = unsafe { sys::ncclGroupStart() };
    if !is_ok(begun) {
        return begun;
    }
    let failed = parts.iter().map(&mut call).find(|&result| !is_ok(result));
    // SAFETY: opened above.
    let ended = unsafe { sys::ncclGroupEnd() };
    failed.unwrap_or(ended)
}

fn number(number: usize) -> Result<c_int, Fault> {
    c_int::try_from(number).map_err(|_| Fault::Unsupported {
        what: format!("{number} does not fit into a number of C"),
        cure: "start fewer ranks",
    })
}
