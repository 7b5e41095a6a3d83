//! The kernel of synchronised batch normalisation: installed while a scope wants it.
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, OnceLock};

use tch::Tensor;

use super::engine::reported;
use super::sys::{self, DdpBatchNorm, DdpBatchNormCallbacks, TensorPtr};
use super::{Result, check};

/// Who combines the ranks' values for `batch_norm`.
///
/// An error ends the forward or backward: libtorch returns it as text.
pub(crate) trait BatchNormObserver: Send + Sync {
    /// The number, from 1, of the layer whose running means are the tensor told apart by this (`None`: it has none), where
    /// its training is to be synchronised.
    fn select(&self, running_mean: Option<usize>) -> Option<u64>;
    /// Turns this rank's count of values a channel, means and (biased) variances into those of all ranks.
    fn forward(
        &self,
        layer: u64,
        count: &mut f64,
        means: &mut [f64],
        variances: &mut [f64],
    ) -> std::result::Result<(), String>;
    /// Turns this rank's sums over values, of gradients and of gradients times normalised inputs, into those of all ranks.
    fn backward(
        &self,
        layer: u64,
        sums: &mut [f64],
        products: &mut [f64],
    ) -> std::result::Result<(), String>;
    /// Of each rank that has values (`count` of them a channel) its `own`, as a row: means, inverse deviations, count, on their
    /// device.
    fn gather(
        &self,
        layer: u64,
        channels: usize,
        count: i64,
        own: &Tensor,
    ) -> std::result::Result<Tensor, String>;
    /// Adds up these sums, two a channel, over all ranks, on their device.
    fn add_up(&self, layer: u64, channels: usize, sums: &Tensor)
    -> std::result::Result<(), String>;
}

/// Finds who combines the values now; nobody outside a scope. One function a process.
pub(crate) type FindObserver = fn() -> Option<Arc<dyn BatchNormObserver>>;

static FIND: OnceLock<FindObserver> = OnceLock::new();
static CALLBACKS: DdpBatchNormCallbacks =
    DdpBatchNormCallbacks { select, forward, backward, gather, add_up };

/// While this lives, training calls of `batch_norm` are shown to the observer.
pub(crate) struct BatchNormKernel {
    raw: *mut DdpBatchNorm,
}

// SAFETY: the pointer is owned by the kernel alone and only freed in its drop.
unsafe impl Send for BatchNormKernel {}

impl BatchNormKernel {
    /// Registers the kernel. One at a time: the caller holds the current session.
    pub(crate) fn install(find: FindObserver) -> Result<Self> {
        FIND.get_or_init(|| find);
        let mut raw = ptr::null_mut();
        // SAFETY: the callbacks are static; `raw` is written on success.
        check(unsafe { sys::ddp_batch_norm_install(&CALLBACKS, &mut raw) })?;
        Ok(Self { raw })
    }
}

impl Drop for BatchNormKernel {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the bridge and is freed once.
        unsafe { sys::ddp_batch_norm_remove(self.raw) }
    }
}

fn observer() -> std::result::Result<Arc<dyn BatchNormObserver>, String> {
    FIND.get()
        .and_then(|find| find())
        .ok_or_else(|| "a synchronised batch_norm runs outside of its scope".to_owned())
}

unsafe extern "C" fn select(running_mean: usize, layer: *mut u64) -> c_int {
    reported(|| {
        let identity = Some(running_mean).filter(|&identity| identity != 0);
        let selected = FIND.get().and_then(|find| find()).and_then(|now| now.select(identity));
        // SAFETY: the kernel passes a place for the number.
        unsafe { *layer = selected.unwrap_or(0) };
        Ok(())
    })
}

unsafe extern "C" fn forward(
    layer: u64,
    channels: usize,
    count: *mut f64,
    means: *mut f64,
    variances: *mut f64,
) -> c_int {
    reported(|| {
        // SAFETY: the kernel passes a count and `channels` means and variances, which nobody else touches during the call.
        let (count, means, variances) =
            unsafe { (&mut *count, slice(means, channels), slice(variances, channels)) };
        observer()?.forward(layer, count, means, variances)
    })
}

unsafe extern "C" fn backward(
    layer: u64,
    channels: usize,
    sums: *mut f64,
    products: *mut f64,
) -> c_int {
    reported(|| {
        // SAFETY: the kernel passes `channels` sums and products, which nobody else touches during the call.
        let (sums, products) = unsafe { (slice(sums, channels), slice(products, channels)) };
        observer()?.backward(layer, sums, products)
    })
}

unsafe extern "C" fn gather(
    layer: u64,
    channels: usize,
    count: i64,
    own: TensorPtr,
    rows: *mut TensorPtr,
) -> c_int {
    reported(|| {
        // SAFETY: the kernel lends a live tensor, which must not be freed here.
        let own = ManuallyDrop::new(unsafe { Tensor::from_ptr(own) });
        let found = ManuallyDrop::new(observer()?.gather(layer, channels, count, &own)?);
        // SAFETY: the kernel passes a place for a tensor, which it owns from then on.
        unsafe { *rows = found.as_ptr().cast_mut() };
        Ok(())
    })
}

unsafe extern "C" fn add_up(layer: u64, channels: usize, sums: TensorPtr) -> c_int {
    reported(|| {
        // SAFETY: the kernel lends a live tensor, which must not be freed here.
        let sums = ManuallyDrop::new(unsafe { Tensor::from_ptr(sums) });
        observer()?.add_up(layer, channels, &sums)
    })
}

/// # Safety
/// `data` spans `length` values that nobody else touches while the result is used.
unsafe fn slice<'a>(data: *mut f64, length: usize) -> &'a mut [f64] {
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts_mut(data, length) }
}
