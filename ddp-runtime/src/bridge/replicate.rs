//! Replicas of a model within one process: differentiable copies of parameters, and the state that a thread takes over.
use std::ffi::c_int;
use std::ptr;

use tch::{Device, Tensor};

use super::sys::{self, DdpThreadEntered, DdpThreadState, TensorPtr, ptr as tensor_ptr};
use super::{BridgeError, Result, check, device_number};

/// How often the tensor was written to.
pub(crate) fn version(tensor: &Tensor) -> Result<i64> {
    let mut version = 0;
    // SAFETY: the tensor is alive; the number is written during the call.
    check(unsafe { sys::ddp_version(tensor_ptr(tensor), &mut version) })?;
    Ok(version)
}

/// Whether something that was computed from the tensor, with gradients on, is still alive.
pub(crate) fn in_a_graph(tensor: &Tensor) -> Result<bool> {
    let mut answer: c_int = 0;
    // SAFETY: the tensor is alive; the flag is written during the call.
    check(unsafe { sys::ddp_in_a_graph(tensor_ptr(tensor), &mut answer) })?;
    Ok(answer != 0)
}

/// The variables of one replica, in the order of the sources.
pub(crate) struct Copies<'a> {
    pub(crate) device: Device,
    pub(crate) tensors: &'a [Tensor],
    /// For each, whether graphs that hold its old value are out of date.
    pub(crate) changed: Vec<bool>,
}

/// Makes the variables of all replicas copies of the sources, each on its replica's device.
///
/// Where a source requires a gradient, a backward adds the copies' gradients up into the source's.
pub(crate) fn replicate(sources: &[Tensor], replicas: &[Copies<'_>]) -> Result<()> {
    let whole =
        |copies: &Copies<'_>| [copies.tensors.len(), copies.changed.len()] == [sources.len(); 2];
    if !replicas.iter().all(whole) {
        return Err(BridgeError::new("a replica has not as many variables as the first"));
    }
    let devices: Vec<c_int> =
        replicas.iter().map(|copies| device_number(copies.device)).collect::<Result<_>>()?;
    let pointers: Vec<TensorPtr> = sources.iter().map(tensor_ptr).collect();
    let tensors = replicas.iter().flat_map(|copies| copies.tensors);
    let copies: Vec<TensorPtr> = tensors.map(tensor_ptr).collect();
    let changed = replicas.iter().flat_map(|copies| &copies.changed);
    let changed: Vec<u8> = changed.map(|&changed| u8::from(changed)).collect();
    // SAFETY: all tensors are alive during the call; the lengths were compared above.
    check(unsafe {
        sys::ddp_replicate(
            pointers.as_ptr(),
            pointers.len(),
            devices.as_ptr(),
            devices.len(),
            copies.as_ptr(),
            changed.as_ptr(),
        )
    })
}

/// What libtorch keeps for a thread: gradient mode, autocast and the like.
pub(crate) struct ThreadState {
    raw: *mut DdpThreadState,
}

// SAFETY: the state is a value that was copied out of its thread and is only read from then on.
unsafe impl Send for ThreadState {}
// SAFETY: as above.
unsafe impl Sync for ThreadState {}

impl ThreadState {
    /// This thread's.
    pub(crate) fn current() -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is written during the call.
        check(unsafe { sys::ddp_thread_state(&mut raw) })?;
        Ok(Self { raw })
    }

    /// Runs `body` under this state, with `device` as the current one.
    pub(crate) fn within<T>(&self, device: Device, body: impl FnOnce() -> T) -> Result<T> {
        let mut entered = Entered { raw: ptr::null_mut() };
        // SAFETY: the state is alive; the guard stays on this thread and goes before it does.
        check(unsafe {
            sys::ddp_thread_enter(self.raw, device_number(device)?, &mut entered.raw)
        })?;
        let value = body();
        drop(entered);
        Ok(value)
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ddp_thread_state and is freed once.
        unsafe { sys::ddp_thread_state_free(self.raw) }
    }
}

/// Puts a thread's own state back, also when a panic passes.
struct Entered {
    raw: *mut DdpThreadEntered,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: null, or from ddp_thread_enter on this thread, and freed once.
        unsafe { sys::ddp_thread_leave(self.raw) }
    }
}
