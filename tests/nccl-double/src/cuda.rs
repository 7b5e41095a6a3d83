//! CUDA's driver interface over host memory. A thread that made no context current gets an error, as with the real one.
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::nccl::COMMUNICATORS;
use crate::setting;
use crate::stream::{EVENTS, Event, STREAMS, Stream};

const OK: c_uint = 0;
const INVALID_VALUE: c_uint = 1;
const OUT_OF_MEMORY: c_uint = 2;
const NO_DEVICE: c_uint = 100;
const INVALID_DEVICE: c_uint = 101;
const INVALID_CONTEXT: c_uint = 201;
const NOT_READY: c_uint = 600;

static CONTEXTS: AtomicI64 = AtomicI64::new(0);
static ALLOCATIONS: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread has a current context.
pub(crate) fn has_context() -> bool {
    CURRENT.get() != 0
}

/// Runs `body` if this thread has a current context.
fn in_context(body: impl FnOnce() -> c_uint) -> c_uint {
    if has_context() { body() } else { INVALID_CONTEXT }
}

/// Tells the runtime that "device" memory is host memory; NVIDIA's driver has no such symbol.
#[unsafe(no_mangle)]
pub extern "C" fn ddpDeviceMemoryIsHostMemory() {}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_uint {
    static ONCE: Once = Once::new();
    extern "C" fn at_exit() {
        let count = |counter: &AtomicI64| counter.load(Ordering::Relaxed);
        setting::log(&format!(
            "end: {} communicators, {} streams, {} events, {} contexts, {} allocations",
            count(&COMMUNICATORS),
            count(&STREAMS),
            count(&EVENTS),
            count(&CONTEXTS),
            count(&ALLOCATIONS)
        ));
    }
    // SAFETY: the function stays loaded to the end of the process.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
    if setting::gpus() > 0 { OK } else { NO_DEVICE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_uint {
    unsafe { *count = setting::gpus() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_uint {
    if !(0..setting::gpus()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    unsafe { *device = ordinal };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    length: c_int,
    _device: c_int,
) -> c_uint {
    const NAME: &[u8] = b"Stand-in\0";
    if (length as usize) < NAME.len() {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr(), name.cast(), NAME.len()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_uint {
    unsafe { *uuid = [device as u8 + 1; 16] };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_uint {
    CONTEXTS.fetch_add(1, Ordering::Relaxed);
    unsafe { *context = device as usize + 1 };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_uint {
    CONTEXTS.fetch_sub(1, Ordering::Relaxed);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> c_uint {
    CURRENT.set(context);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> c_uint {
    in_context(|| {
        unsafe { (*least, *greatest) = (0, -5) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut *const Stream,
    _flags: c_uint,
    _priority: c_int,
) -> c_uint {
    in_context(|| {
        unsafe { *stream = Arc::into_raw(Stream::start()) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: *const Stream) -> c_uint {
    unsafe { Arc::from_raw(stream) }.end();
    OK
}

/// How the log calls a stream.
fn called(stream: *const Stream) -> &'static str {
    if stream.is_null() { "default stream" } else { "own stream" }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: *const Stream,
    event: *const Event,
    _flags: c_uint,
) -> c_uint {
    in_context(|| {
        setting::log(&format!("cuStreamWaitEvent {}", called(stream)));
        unsafe { shared(event) }.hold(unsafe { stream.as_ref() });
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *const Event, _flags: c_uint) -> c_uint {
    in_context(|| {
        EVENTS.fetch_add(1, Ordering::Relaxed);
        unsafe { *event = Arc::into_raw(Event::new()) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *const Event, stream: *const Stream) -> c_uint {
    in_context(|| {
        setting::log(&format!("cuEventRecord {}", called(stream)));
        unsafe { shared(event) }.record(unsafe { stream.as_ref() });
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *const Event) -> c_uint {
    if unsafe { &*event }.is_done() { OK } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *const Event) -> c_uint {
    EVENTS.fetch_sub(1, Ordering::Relaxed);
    drop(unsafe { Arc::from_raw(event) });
    OK
}

/// Another handle to what the caller holds one to.
unsafe fn shared(event: *const Event) -> Arc<Event> {
    unsafe {
        Arc::increment_strong_count(event);
        Arc::from_raw(event)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut usize, bytes: usize) -> c_uint {
    in_context(|| {
        let memory = unsafe { libc::malloc(bytes) } as usize;
        if memory == 0 {
            return OUT_OF_MEMORY;
        }
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { *address = memory };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: usize) -> c_uint {
    ALLOCATIONS.fetch_sub(1, Ordering::Relaxed);
    unsafe { libc::free(address as *mut c_void) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const u8, bytes: usize) -> c_uint {
    in_context(|| {
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: usize, bytes: usize) -> c_uint {
    in_context(|| {
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
        OK
    })
}

/// Fills memory on a stream; on the default one at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    address: usize,
    value: u8,
    bytes: usize,
    stream: *const Stream,
) -> c_uint {
    in_context(|| {
        let fill = move || unsafe { std::ptr::write_bytes(address as *mut u8, value, bytes) };
        match unsafe { stream.as_ref() } {
            Some(stream) => stream.push(fill),
            None => fill(),
        }
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: c_uint, text: *mut *const c_char) -> c_uint {
    let name = match error {
        OK => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    unsafe { *text = name.as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_uint, text: *mut *const c_char) -> c_uint {
    unsafe { cuGetErrorName(error, text) }
}
