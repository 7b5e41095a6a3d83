//! What the reducer needs of tensors beyond tch's API.
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::sys::{self, TensorPtr, ptr as tensor_ptr};
use super::{BridgeError, Result, check};

/// Takes over a tensor that the bridge has made.
pub(super) fn owned(raw: TensorPtr) -> Tensor {
    // SAFETY: the bridge hands out a fresh at::Tensor that nobody else frees.
    unsafe { Tensor::from_ptr(raw) }
}

/// `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.
///
/// # Errors
/// When `n` is negative.
pub(crate) fn randperm(seed: u64, n: i64) -> Result<Vec<i64>> {
    let length = usize::try_from(n)
        .map_err(|_| BridgeError::new(format!("a permutation of {n} elements is not possible")))?;
    let mut order = vec![0_i64; length];
    // SAFETY: `order` has room for `n` elements.
    check(unsafe { sys::ddp_randperm(seed, n, order.as_mut_ptr()) })?;
    Ok(order)
}

/// `torch.multinomial(weights, samples, replacement, generator=torch.Generator().manual_seed(seed))`.
///
/// # Errors
/// Where PyTorch has one: more than 2^24 weights, or none above zero.
pub(crate) fn multinomial(
    seed: u64,
    weights: &[f64],
    samples: usize,
    replacement: bool,
) -> Result<Vec<i64>> {
    let mut drawn = vec![0_i64; samples];
    let (count, length) = (weights.len() as i64, samples as i64);
    // SAFETY: `weights` has `count` elements, `drawn` has room for `samples`.
    check(unsafe {
        sys::ddp_multinomial(
            seed,
            weights.as_ptr(),
            count,
            length,
            c_int::from(replacement),
            drawn.as_mut_ptr(),
        )
    })?;
    Ok(drawn)
}

/// A tensor over `flat`'s storage from element `offset` on, with the sizes of `like` and, where it is dense, its strides.
pub(crate) fn view_like(flat: &Tensor, offset: i64, like: &Tensor) -> Result<Tensor> {
    let mut raw = ptr::null_mut();
    // SAFETY: both tensors are alive during the call; set_ keeps the storage by reference count.
    check(unsafe { sys::ddp_view_like(tensor_ptr(flat), offset, tensor_ptr(like), &mut raw) })?;
    Ok(owned(raw))
}

/// What tells two tensors apart: the address of the object that all handles to one share.
pub(crate) fn identity(tensor: &Tensor) -> Result<usize> {
    let mut identity = 0;
    // SAFETY: the tensor is alive; the number is written during the call.
    check(unsafe { sys::ddp_identity(tensor_ptr(tensor), &mut identity) })?;
    Ok(identity)
}

/// Who holds a view of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewUse {
    /// Somebody beside the reducer and the parameter's gradient slot.
    pub(crate) held: bool,
    /// The parameter's gradient slot.
    pub(crate) is_gradient: bool,
}

/// Who holds `view`, which lies in a bucket for `parameter`'s gradient.
pub(crate) fn view_use(parameter: &Tensor, view: &Tensor) -> Result<ViewUse> {
    let (mut held, mut is_gradient): (c_int, c_int) = (0, 0);
    let (parameter, view) = (tensor_ptr(parameter), tensor_ptr(view));
    // SAFETY: both tensors are alive; the flags are written during the call.
    check(unsafe { sys::ddp_view_use(parameter, view, &mut held, &mut is_gradient) })?;
    Ok(ViewUse { held: held != 0, is_gradient: is_gradient != 0 })
}

/// How a tensor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorState {
    /// Who holds it, the caller's handle included.
    pub(crate) holders: i64,
    /// How often it was written to in place.
    pub(crate) version: i64,
}

/// How a tensor is used.
pub(crate) fn tensor_state(tensor: &Tensor) -> Result<TensorState> {
    let mut state = TensorState { holders: 0, version: 0 };
    // SAFETY: the tensor is alive; the numbers are written during the call.
    check(unsafe {
        sys::ddp_tensor_state(tensor_ptr(tensor), &mut state.holders, &mut state.version)
    })?;
    Ok(state)
}

/// How many tensors share the storage.
pub(crate) fn storage_uses(tensor: &Tensor) -> Result<i64> {
    let mut uses = 0;
    // SAFETY: the tensor is alive; the number is written during the call.
    check(unsafe { sys::ddp_storage_uses(tensor_ptr(tensor), &mut uses) })?;
    Ok(uses)
}

/// An alias that shares data, but neither history nor version counter: writing to it is invisible to autograd.
pub(crate) fn data_alias(tensor: &Tensor) -> Result<Tensor> {
    let mut raw = ptr::null_mut();
    // SAFETY: the tensor is alive during the call.
    check(unsafe { sys::ddp_data_alias(tensor_ptr(tensor), &mut raw) })?;
    Ok(owned(raw))
}

/// A hash of the values, equal for equal bits.
pub(crate) fn checksum(tensor: &Tensor) -> Result<u64> {
    let mut sum = 0;
    // SAFETY: the tensor is alive during the call.
    check(unsafe { sys::ddp_checksum(tensor_ptr(tensor), &mut sum) })?;
    Ok(sum)
}

/// A flat CPU tensor over memory that `owner` keeps alive: it is let go with the last tensor over the memory.
///
/// # Safety
/// `data` spans that many elements, is aligned for them, and lives as long as `owner`.
pub(crate) unsafe fn tensor_over<T: Send + Sync + 'static>(
    data: *mut u8,
    elements: usize,
    kind: Kind,
    owner: Arc<T>,
) -> Result<Tensor> {
    unsafe extern "C" fn release<T>(context: *mut c_void) {
        // SAFETY: `context` came from Arc::into_raw below, and is released once.
        drop(unsafe { Arc::from_raw(context.cast::<T>().cast_const()) });
    }
    let like = Tensor::f_zeros([0], (kind, Device::Cpu))
        .map_err(|error| BridgeError::new(error.to_string()))?;
    let context = Arc::into_raw(owner).cast_mut().cast();
    let mut raw = ptr::null_mut();
    let length = elements as i64;
    // SAFETY: by the contract above. When the call fails, the owner is kept for ever rather than let go twice.
    check(unsafe {
        sys::ddp_tensor_over(
            data.cast(),
            length,
            tensor_ptr(&like),
            release::<T>,
            context,
            &mut raw,
        )
    })?;
    Ok(owned(raw))
}

/// What `.grad` was before it became the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GradState {
    /// No gradient: the view is zero now and is not the gradient.
    Undefined,
    /// Another tensor, copied into the view.
    Moved,
    /// The view itself.
    InPlace,
    /// The view itself, which is yet to be multiplied.
    Unscaled,
}

/// Moves `parameter.grad`, times `scale`, into the view, and makes the view the gradient. With `defer` the caller scales a
/// gradient that lies there already.
pub(crate) fn grad_into_view(
    parameter: &Tensor,
    view: &Tensor,
    scale: f64,
    defer: bool,
) -> Result<GradState> {
    let mut state: c_int = 0;
    // SAFETY: both tensors are alive; the gradient slot of a leaf is written by the engine's thread for that leaf alone.
    check(unsafe {
        sys::ddp_grad_into_view(
            tensor_ptr(parameter),
            tensor_ptr(view),
            scale,
            c_int::from(defer),
            &mut state,
        )
    })?;
    Ok(match state {
        0 => GradState::Undefined,
        1 => GradState::Moved,
        2 => GradState::InPlace,
        _ => GradState::Unscaled,
    })
}

/// Replaces the gradient of a leaf.
pub(crate) fn set_grad(parameter: &Tensor, gradient: Option<&Tensor>) -> Result<()> {
    let gradient = gradient.map_or(ptr::null_mut(), tensor_ptr);
    // SAFETY: as in `grad_into_view`; a null gradient means none.
    check(unsafe { sys::ddp_set_grad(tensor_ptr(parameter), gradient) })
}

/// What was found while gradients were unscaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unscaled {
    /// How many parameters have a gradient.
    pub(crate) gradients: usize,
    /// Whether one of them holds an infinity or a NaN.
    pub(crate) found_inf: bool,
}

/// Multiplies the gradients of `parameters` by `inverse_scale`, in place.
pub(crate) fn unscale_gradients(parameters: &[Tensor], inverse_scale: f32) -> Result<Unscaled> {
    let pointers: Vec<TensorPtr> = parameters.iter().map(tensor_ptr).collect();
    let (mut gradients, mut found_inf): (usize, c_int) = (0, 0);
    // SAFETY: the tensors are alive during the call; both numbers are written during it.
    check(unsafe {
        sys::ddp_unscale_gradients(
            pointers.as_ptr(),
            pointers.len(),
            inverse_scale,
            &mut gradients,
            &mut found_inf,
        )
    })?;
    Ok(Unscaled { gradients, found_inf: found_inf != 0 })
}
