//! `c10d::ProcessGroupGloo` and its work handles.
use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use tch::Tensor;

use super::store::millis;
use super::sys::{self, DdpGroup, DdpWork, ptr as tensor_ptr};
use super::{Result, TcpStore, c_string, check};
use crate::comm::ReduceOp;

/// One set of connections between all ranks. Operations are matched by the order in which each rank issues them.
pub(crate) struct GlooGroup {
    raw: *mut DdpGroup,
}

// SAFETY: the group may move between threads; it is not shared (no Sync), so its calls never race.
unsafe impl Send for GlooGroup {}

impl GlooGroup {
    /// Connects all ranks; `address` is the local address that the peers reach this rank at.
    pub(crate) fn connect(
        store: &TcpStore,
        prefix: &str,
        rank: usize,
        size: usize,
        address: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let (prefix, address) = (c_string(prefix)?, c_string(address)?);
        let mut raw = ptr::null_mut();
        // SAFETY: the store is alive during the call and kept by reference count after it; `raw` is written on success.
        check(unsafe {
            sys::ddp_gloo_new(
                store.raw(),
                prefix.as_ptr(),
                rank as c_int,
                size as c_int,
                address.as_ptr(),
                millis(timeout),
                &mut raw,
            )
        })?;
        Ok(Self { raw })
    }

    pub(crate) fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<GlooWork> {
        let op = match op {
            ReduceOp::Sum | ReduceOp::Avg => 0,
            ReduceOp::Min => 1,
            ReduceOp::Max => 2,
            ReduceOp::Product => 3,
        };
        // SAFETY: the work holds its own handle to the tensor, so the storage outlives the operation.
        GlooWork::start(|out| unsafe {
            sys::ddp_gloo_all_reduce(self.raw, tensor_ptr(tensor), op, out)
        })
    }

    pub(crate) fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<GlooWork> {
        // SAFETY: as in `all_reduce`.
        GlooWork::start(|out| unsafe {
            sys::ddp_gloo_broadcast(self.raw, tensor_ptr(tensor), root as c_int, out)
        })
    }

    pub(crate) fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<GlooWork> {
        // SAFETY: as in `all_reduce`, for both tensors.
        GlooWork::start(|out| unsafe {
            sys::ddp_gloo_all_gather(self.raw, tensor_ptr(output), tensor_ptr(input), out)
        })
    }
}

impl Drop for GlooGroup {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ddp_gloo_new and is freed once.
        unsafe { sys::ddp_gloo_free(self.raw) }
    }
}

/// An operation under way.
pub(crate) struct GlooWork {
    raw: *mut DdpWork,
}

// SAFETY: a c10d::Work guards its state by a mutex and may be waited for on any thread.
unsafe impl Send for GlooWork {}

impl GlooWork {
    fn start(issue: impl FnOnce(*mut *mut DdpWork) -> c_int) -> Result<Self> {
        let mut raw = ptr::null_mut();
        check(issue(&mut raw))?;
        Ok(Self { raw })
    }

    /// Waits at most this long; says whether the operation has finished, or how it failed.
    pub(crate) fn wait(&self, limit: Duration) -> Result<bool> {
        let mut done: c_int = 0;
        // SAFETY: the work lives as long as `self`.
        check(unsafe { sys::ddp_work_wait(self.raw, millis(limit), &mut done) })?;
        Ok(done != 0)
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        let mut done: c_int = 0;
        // SAFETY: the work lives as long as `self`.
        check(unsafe { sys::ddp_work_is_done(self.raw, &mut done) })?;
        Ok(done != 0)
    }
}

impl Drop for GlooWork {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the bridge and is freed once.
        unsafe { sys::ddp_work_free(self.raw) }
    }
}
