//! The GPU of this rank, its streams and events, over CUDA's driver.
//!
//! Nothing here waits for the GPU: streams wait for each other through events.
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{self, ctx, device, event, primary_ctx, stream};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUevent, CUevent_flags, CUresult, CUstream};

use super::fault::{Fault, driver};

/// All functions that are called here or in `probe.rs`.
const SYMBOLS: [&str; 20] = [
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuStreamWaitEvent",
];
/// Those that cudarc has under another name, or that are only called at the end.
const MORE_SYMBOLS: [&str; 2] = ["cuStreamCreateWithPriority", "cuStreamDestroy_v2"];

/// A symbol that NVIDIA's driver does not have, but the stand-in for it in this project's tests: there the memory of the
/// "GPU" is that of the host, so that CPU tensors can be carried.
const HOST_MEMORY: &str = "ddpDeviceMemoryIsHostMemory";

/// Whether the driver is there with all that is needed.
fn loaded() -> Result<(), Fault> {
    static LOADED: OnceLock<Result<(), Fault>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            // SAFETY: loads the driver and looks up addresses; nothing is called.
            unsafe {
                if !sys::is_culib_present() {
                    return Err(Fault::NoDriver);
                }
                let missing =
                    SYMBOLS.into_iter().chain(MORE_SYMBOLS).find(|name| !has_symbol(name));
                match missing {
                    Some(symbol) => Err(Fault::OldDriver { symbol }),
                    None => Ok(()),
                }
            }
        })
        .clone()
}

/// # Safety
/// The driver's library is present.
unsafe fn has_symbol(name: &str) -> bool {
    // SAFETY: only the address is looked up.
    unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_ok()
}

/// How many GPUs are visible to this process. Loads the driver, but makes no context on any.
pub(super) fn visible() -> Result<usize, Fault> {
    loaded()?;
    match result::init().and_then(|()| device::get_count()) {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(error) if error.0 == CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        Err(error) => driver("cuInit", Err(error)),
    }
}

/// Whether device memory is host memory: never with NVIDIA's driver.
pub(super) fn is_host_memory() -> bool {
    // SAFETY: the driver is present.
    loaded().is_ok() && unsafe { has_symbol(HOST_MEMORY) }
}

/// What tells a GPU from all others, and what NVIDIA calls it. Makes nothing on it.
pub(super) fn identify(ordinal: usize) -> Result<(String, String), Fault> {
    let device = driver("cuDeviceGet", device::get(number(ordinal)))?;
    let uuid = driver("cuDeviceGetUuid", device::get_uuid(device))?;
    let uuid = uuid.bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
    Ok((uuid, driver("cuDeviceGetName", device::get_name(device))?))
}

fn number(ordinal: usize) -> c_int {
    // A number that does not fit is none that the driver knows.
    c_int::try_from(ordinal).unwrap_or(c_int::MAX)
}

/// One GPU, with its primary context: the one that libtorch uses too.
pub(super) struct Gpu {
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: contexts may be current on several threads at once, and the driver's functions may be called from any.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Takes the GPU with this number among the visible ones, and makes it current on this thread.
    pub(super) fn open(ordinal: usize) -> Result<Self, Fault> {
        loaded()?;
        driver("cuInit", result::init())?;
        let device = driver("cuDeviceGet", device::get(number(ordinal)))?;
        // SAFETY: the device is one that cuDeviceGet returned.
        let context = driver("cuDevicePrimaryCtxRetain", unsafe { primary_ctx::retain(device) })?;
        let gpu = Self { device, context };
        gpu.bind()?;
        Ok(gpu)
    }

    /// Makes it current on this thread.
    pub(super) fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained until the drop below.
        driver("cuCtxSetCurrent", unsafe { ctx::set_current(self.context) })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`. A failure at this point has nobody to be told to.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// A stream of our own, of high priority, that does not wait for the default stream by itself.
pub(super) struct Stream {
    raw: CUstream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders concurrent calls.
unsafe impl Sync for Stream {}

impl Stream {
    /// On the current GPU.
    pub(super) fn new() -> Result<Self, Fault> {
        // Small kernels that other ranks wait for go before large ones that nobody does.
        let (_, highest) = driver("cuCtxGetStreamPriorityRange", stream::get_priority_range())?;
        let raw = driver(
            "cuStreamCreateWithPriority",
            stream::create_with_priority(StreamKind::NonBlocking, highest),
        )?;
        Ok(Self { raw })
    }

    /// For calls of NCCL.
    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// What is issued on it from now on waits for the event. The host goes on.
    pub(super) fn wait(&self, event: &Event) -> Result<(), Fault> {
        wait(self.raw, event)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; what is under way on it is finished by the driver.
        let _ = unsafe { stream::destroy(self.raw) };
    }
}

/// What is issued on `stream` from now on waits for the event.
pub(super) fn wait(stream: CUstream, event: &Event) -> Result<(), Fault> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: stream and event are alive: ours by their owners, libtorch's for good.
    driver("cuStreamWaitEvent", unsafe { stream::wait_event(stream, event.raw, flags) })
}

/// A point in a stream.
pub(super) struct Event {
    raw: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// The point that `stream` has been told to reach so far.
    pub(super) fn after(stream: CUstream) -> Result<Self, Fault> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = Self { raw: driver("cuEventCreate", event::create(flags))? };
        // SAFETY: both are alive.
        driver("cuEventRecord", unsafe { event::record(event.raw, stream) })?;
        Ok(event)
    }

    /// Whether the stream has passed it.
    pub(super) fn is_done(&self) -> Result<bool, Fault> {
        // SAFETY: the event is alive.
        match unsafe { event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => driver("cuEventQuery", Err(error)),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `after`, destroyed once; the driver allows it before the event is reached.
        let _ = unsafe { event::destroy(self.raw) };
    }
}
