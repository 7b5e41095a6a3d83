//! NCCL's interface: communicators that do not block, collectives on streams, groups, asynchronous errors, abort.
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::cuda::has_context;
use crate::meeting::{Meeting, Missed, PLACE, new_path};
use crate::reduce;
use crate::setting::{self, At, happens};
use crate::stream::Stream;
use crate::worker;

const SUCCESS: u32 = 0;
const CUDA_ERROR: u32 = 1;
const INVALID_ARGUMENT: u32 = 4;
const INVALID_USAGE: u32 = 5;
const REMOTE_ERROR: u32 = 6;
const IN_PROGRESS: u32 = 7;

pub(crate) static COMMUNICATORS: AtomicI64 = AtomicI64::new(0);

/// One rank's end of a communicator.
pub(crate) struct Comm {
    rank: usize,
    ranks: usize,
    meeting: OnceLock<Meeting>,
    aborted: AtomicBool,
    /// What `ncclCommGetAsyncError` says.
    state: AtomicU32,
    issued: AtomicU64,
    /// Collectives that have not run yet.
    waiting: AtomicU64,
}

#[derive(Clone, Copy)]
enum Kind {
    AllReduce { op: c_uint },
    Broadcast { root: usize },
    AllGather,
}

/// A collective as it was called; addresses are those of the caller, who keeps the memory.
#[derive(Clone, Copy)]
struct Call {
    kind: Kind,
    from: usize,
    to: usize,
    count: usize,
    dtype: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

/// The head of `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

static LAST_ERROR: Mutex<String> = Mutex::new(String::new());

fn fail(code: u32, text: &str) -> u32 {
    let mut last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    *last = format!("{text}\0");
    code
}

/// The code that the test wants this function to return on this rank.
fn asked_to_fail(name: &str, rank: usize) -> Option<u32> {
    let code = setting::fault(name, rank)? as u32;
    Some(fail(code, &format!("{name} was told to fail")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> u32 {
    unsafe { *version = setting::version() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> u32 {
    setting::log("ncclGetUniqueId");
    if let Some(code) = asked_to_fail("ncclGetUniqueId", setting::process_rank()) {
        return code;
    }
    let path = new_path();
    let text = path.as_os_str().as_encoded_bytes();
    let mut bytes = [0; 128];
    bytes[..text.len()].copy_from_slice(text);
    unsafe { (*id).bytes = bytes };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *const Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> u32 {
    let (rank, ranks) = (rank as usize, ranks as usize);
    let config = unsafe { &*config };
    setting::log(&format!(
        "ncclCommInitRankConfig {rank} of {ranks}, blocking {}",
        config.blocking
    ));
    if let Some(code) = asked_to_fail("ncclCommInitRankConfig", rank) {
        return code;
    }
    if !has_context() {
        return fail(CUDA_ERROR, "no context is current");
    }
    if config.magic != 0xcafe_beef || config.size < size_of::<Config>() || config.blocking != 0 {
        return fail(INVALID_ARGUMENT, "the configuration is not one");
    }
    COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
    let comm = Arc::new(Comm {
        rank,
        ranks,
        meeting: OnceLock::new(),
        aborted: AtomicBool::new(false),
        state: AtomicU32::new(IN_PROGRESS),
        issued: AtomicU64::new(0),
        waiting: AtomicU64::new(0),
    });
    unsafe { *out = Arc::into_raw(Arc::clone(&comm)) };
    let text = id.bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = PathBuf::from(String::from_utf8_lossy(text).into_owned());
    worker::spawn(move || {
        let state = match Meeting::join(&path, comm.rank, comm.ranks, &comm.aborted) {
            Ok(meeting) => {
                let _ = comm.meeting.set(meeting);
                SUCCESS
            }
            Err(missed) => comm.missed(missed),
        };
        comm.state.store(state, Ordering::Release);
    });
    IN_PROGRESS
}

impl Comm {
    fn missed(&self, missed: Missed) -> u32 {
        match missed {
            Missed::Aborted => fail(INVALID_USAGE, "aborted"),
            Missed::Gone => fail(REMOTE_ERROR, "a process of the communicator is gone"),
            Missed::Different => fail(INVALID_USAGE, "the ranks call different collectives"),
        }
    }

    /// Runs one collective, on a stream's thread. `number` counts them.
    fn run(&self, call: Call, number: u64) {
        let result = self.carry_out(call, number);
        if let Err(missed) = result
            && missed != Missed::Aborted
        {
            self.state.store(self.missed(missed), Ordering::Release);
            // As a kernel that never ends: only an abort gets the stream on.
            self.hang();
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    fn hang(&self) {
        while !self.aborted.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Hangs until it is aborted, which gives the other ranks nothing.
    fn never_arrive(&self) -> Result<(), Missed> {
        self.hang();
        Err(Missed::Aborted)
    }

    fn carry_out(&self, call: Call, number: u64) -> Result<(), Missed> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Missed::Aborted);
        }
        if happens(At::Die, self.rank, number) {
            // SAFETY: ends the process at once, which is what is asked for.
            unsafe { libc::_exit(9) };
        }
        if happens(At::Async, self.rank, number) {
            self.state.store(fail(REMOTE_ERROR, "told to fail"), Ordering::Release);
            return self.never_arrive();
        }
        if happens(At::Hang, self.rank, number) {
            return self.never_arrive();
        }
        let meeting = self.meeting.get().ok_or(Missed::Aborted)?;
        let (size, tag) = (reduce::size(call.dtype), call.tag());
        let step = PLACE / size;
        let mut start = 0;
        while start < call.count || (start == 0 && call.count == 0) {
            let count = step.min(call.count - start);
            let (at, bytes) = (start * size, count * size);
            // SAFETY: the caller's memory spans `count` elements; see `Call`.
            meeting.write(unsafe { slice(call.from + at, bytes) });
            meeting.meet(tag, &self.aborted)?;
            // SAFETY: as above; for a gather, those of all ranks.
            unsafe { call.take(meeting, at, bytes) };
            meeting.meet(tag, &self.aborted)?;
            start += count.max(1);
        }
        if happens(At::Wrong, self.rank, number) {
            // SAFETY: as above.
            unsafe { *(call.to as *mut u8) ^= 0x40 };
        }
        Ok(())
    }
}

/// # Safety
/// `address` spans as many bytes, or there are none.
unsafe fn slice<'a>(address: usize, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

impl Call {
    /// A number that differs where calls do.
    fn tag(self) -> u64 {
        let (kind, detail) = match self.kind {
            Kind::AllReduce { op } => (1, u64::from(op)),
            Kind::Broadcast { root } => (2, root as u64),
            Kind::AllGather => (3, 0),
        };
        (self.count as u64) << 24 | u64::from(self.dtype) << 16 | detail << 8 | kind
    }

    /// Takes a stretch of the result from what the ranks have written.
    ///
    /// # Safety
    /// The memory at `to` spans the result.
    unsafe fn take(self, meeting: &Meeting, at: usize, bytes: usize) {
        // SAFETY: by the contract above.
        unsafe {
            match self.kind {
                Kind::AllReduce { op } => {
                    let parts: Vec<&[u8]> =
                        (0..meeting.ranks()).map(|rank| meeting.read(rank, bytes)).collect();
                    reduce::combine(self.dtype, op, &parts, slice(self.to + at, bytes));
                }
                Kind::Broadcast { root } => {
                    slice(self.to + at, bytes).copy_from_slice(meeting.read(root, bytes));
                }
                Kind::AllGather => {
                    let whole = self.count * reduce::size(self.dtype);
                    for rank in 0..meeting.ranks() {
                        slice(self.to + rank * whole + at, bytes)
                            .copy_from_slice(meeting.read(rank, bytes));
                    }
                }
            }
        }
    }
}

type Launch = (Arc<Comm>, Arc<Stream>, Call);

thread_local! {
    /// Calls of the open group, if there is one.
    static GROUP: RefCell<Option<Vec<Launch>>> = const { RefCell::new(None) };
}

/// # Safety
/// Handles that are alive.
unsafe fn issue(name: &str, comm: *const Comm, stream: *const Stream, call: Call) -> u32 {
    // SAFETY: by the contract above; the caller keeps its own handles.
    let (comm, stream) = unsafe {
        Arc::increment_strong_count(comm);
        Arc::increment_strong_count(stream);
        (Arc::from_raw(comm), Arc::from_raw(stream))
    };
    setting::log(&format!(
        "{name} type {} count {} tag {:x}",
        call.dtype,
        call.count,
        call.tag() & 0xffff
    ));
    if let Some(code) = asked_to_fail(name, comm.rank) {
        return code;
    }
    if comm.state.load(Ordering::Acquire) == IN_PROGRESS {
        return fail(INVALID_USAGE, "the call before this one is still in progress");
    }
    if !has_context() {
        return fail(CUDA_ERROR, "no context is current");
    }
    let single = GROUP.with_borrow_mut(|group| match group {
        Some(calls) => {
            calls.push((Arc::clone(&comm), Arc::clone(&stream), call));
            None
        }
        None => Some((comm, stream, call)),
    });
    single.map_or(SUCCESS, |launch| start(vec![launch]))
}

/// Puts collectives on their streams: at once, or in a moment.
fn start(launches: Vec<Launch>) -> u32 {
    for (comm, _, _) in &launches {
        comm.waiting.fetch_add(1, Ordering::AcqRel);
    }
    let push = |launches: Vec<Launch>| {
        for (comm, stream, call) in launches {
            let number = comm.issued.fetch_add(1, Ordering::AcqRel) + 1;
            stream.push(move || comm.run(call, number));
        }
    };
    if !setting::slow_launch() {
        push(launches);
        return SUCCESS;
    }
    let comms: Vec<Arc<Comm>> = launches.iter().map(|launch| Arc::clone(&launch.0)).collect();
    for comm in &comms {
        comm.state.store(IN_PROGRESS, Ordering::Release);
    }
    worker::spawn(move || {
        std::thread::sleep(Duration::from_millis(3));
        push(launches);
        for comm in comms {
            // An error stays.
            let _ = comm.state.compare_exchange(
                IN_PROGRESS,
                SUCCESS,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
    });
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> u32 {
    setting::log("ncclGroupStart");
    GROUP.with_borrow_mut(|group| {
        group.get_or_insert_default();
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> u32 {
    setting::log("ncclGroupEnd");
    match GROUP.take() {
        Some(calls) if calls.is_empty() => SUCCESS,
        Some(calls) => start(calls),
        None => fail(INVALID_USAGE, "no group is open"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_uint,
    op: c_uint,
    comm: *const Comm,
    stream: *const Stream,
) -> u32 {
    let kind = Kind::AllReduce { op };
    let call = Call { kind, from: from as usize, to: to as usize, count, dtype };
    unsafe { issue("ncclAllReduce", comm, stream, call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_uint,
    root: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> u32 {
    let kind = Kind::Broadcast { root: root as usize };
    let call = Call { kind, from: from as usize, to: to as usize, count, dtype };
    unsafe { issue("ncclBroadcast", comm, stream, call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_uint,
    comm: *const Comm,
    stream: *const Stream,
) -> u32 {
    let call = Call { kind: Kind::AllGather, from: from as usize, to: to as usize, count, dtype };
    unsafe { issue("ncclAllGather", comm, stream, call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *const Comm, state: *mut u32) -> u32 {
    unsafe { *state = (*comm).state.load(Ordering::Acquire) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *const Comm) -> u32 {
    setting::log("ncclCommFinalize");
    let comm = unsafe { &*comm };
    if comm.waiting.load(Ordering::Acquire) > 0 {
        return fail(INVALID_USAGE, "a collective is under way");
    }
    if let Some(meeting) = comm.meeting.get() {
        meeting.leave();
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *const Comm) -> u32 {
    setting::log("ncclCommDestroy");
    COMMUNICATORS.fetch_sub(1, Ordering::Relaxed);
    drop(unsafe { Arc::from_raw(comm) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *const Comm) -> u32 {
    setting::log("ncclCommAbort");
    COMMUNICATORS.fetch_sub(1, Ordering::Relaxed);
    let comm = unsafe { Arc::from_raw(comm) };
    comm.aborted.store(true, Ordering::Release);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        CUDA_ERROR => c"unhandled cuda error",
        2 => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"internal error",
    };
    text.as_ptr()
}

/// The text stays valid until the next failure, as with NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *const Comm) -> *const c_char {
    let mut last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_empty() {
        last.push('\0');
    }
    last.as_ptr().cast()
}
