//! The room of the bridge to libtorch: thin, safe forms of `csrc/bridge.h`.
//!
//! Three layers: `sys` declares, the functions here check the status and carry the text, the types below own. Nothing
//! outside this folder calls C++ of ours, and no C++ exception leaves it.
// The C interface can only be called through unsafe code; each call names what it relies on.
#![allow(unsafe_code)]

mod batch_norm;
mod cuda;
mod engine;
mod gloo;
mod lend;
mod optimizer;
mod random;
mod replicate;
mod store;
mod sys;
mod tensor;

use std::ffi::{CStr, CString, c_int, c_void};

use tch::Device;

pub(crate) use batch_norm::{BatchNormKernel, BatchNormObserver};
pub(crate) use cuda::{current_stream, libtorch_folder, set_device};
pub(crate) use engine::{BackwardKind, BackwardObserver, Leaf, Route};
pub(crate) use gloo::{GlooGroup, GlooWork};
pub(crate) use lend::{Adopted, Lend, Owner, adopt_gradient};
pub(crate) use optimizer::{OptimizerHandle, load_optimizer};
pub(crate) use random::{generator_state, set_generator_state};
pub(crate) use replicate::{Copies, ThreadState, in_a_graph, replicate, version};
pub(crate) use store::{StoreRole, TcpStore};
pub(crate) use tensor::{
    GradState, checksum, data_alias, grad_into_view, identity, multinomial, randperm, set_grad,
    storage_uses, tensor_over, tensor_state, unscale_gradients, view_like, view_use,
};

/// A call into libtorch, or an operation of a transport, that failed; with its own text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct BridgeError {
    text: String,
    own: bool,
}

impl BridgeError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), own: false }
    }

    /// A failure that this rank has found by itself, and that the others are to be told of.
    pub(crate) fn of_this_rank(text: impl Into<String>) -> Self {
        Self { text: text.into(), own: true }
    }

    /// Whether this rank has found it by itself.
    pub(crate) fn is_of_this_rank(&self) -> bool {
        self.own
    }
}

type Result<T> = std::result::Result<T, BridgeError>;

/// Turns the status of a bridge function into a result.
fn check(status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: ddp_error returns a NUL-terminated text that lives until this thread's next bridge call.
    let text = unsafe { CStr::from_ptr(sys::ddp_error()) };
    Err(BridgeError::new(text.to_string_lossy().trim()))
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| BridgeError::new(format!("{text:?} holds a NUL byte")))
}

/// The number that the bridge knows a device by.
fn device_number(device: Device) -> Result<c_int> {
    match device {
        Device::Cpu => Ok(-1),
        Device::Cuda(index) => c_int::try_from(index)
            .map_err(|_| BridgeError::new(format!("there is no GPU number {index}"))),
        other => Err(BridgeError::new(format!("{other:?} is neither the CPU nor a GPU of CUDA"))),
    }
}

/// Makes `TORCH_CPP_LOG_LEVEL` count in this process, as it does under Python.
pub(crate) fn init_logging() -> Result<()> {
    // SAFETY: takes no arguments and may be called at any time.
    check(unsafe { sys::ddp_init_logging() })
}

/// Keeps freed memory in the process instead of giving it back to the kernel.
pub(crate) fn keep_freed_memory() {
    // SAFETY: takes no arguments and may be called at any time.
    unsafe { sys::ddp_keep_freed_memory() }
}

/// From now on libtorch uses no threads but the calling one when that one computes.
pub(crate) fn compute_alone() -> Result<()> {
    // SAFETY: takes no arguments and may be called at any time.
    check(unsafe { sys::ddp_compute_alone() })
}

/// Appends bytes that the bridge hands out to the vector that is its context.
///
/// # Safety
/// `context` points to a `Vec<u8>` that is alive and unaliased during the call; `data` spans `length` bytes.
unsafe extern "C" fn take_bytes(context: *mut c_void, data: *const u8, length: usize) {
    // SAFETY: by the contract above.
    unsafe {
        let value = &mut *context.cast::<Vec<u8>>();
        if length > 0 {
            value.extend_from_slice(std::slice::from_raw_parts(data, length));
        }
    }
}
