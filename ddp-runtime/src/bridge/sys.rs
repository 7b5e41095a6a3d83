//! The C interface of the bridge, as declared in `csrc/bridge.h`, `replicate.h`, `amp.h` and `state.h`.
use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;
use torch_sys::C_tensor;

/// An `at::Tensor*`, as tch holds it.
pub(super) type TensorPtr = *mut C_tensor;

/// Marks a C++ object that Rust only points to.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        }
    )*};
}
opaque!(DdpStore, DdpGroup, DdpWork, DdpLeaf, DdpBatchNorm, DdpThreadState, DdpThreadEntered);

/// See `DdpCallbacks` in `bridge.h`.
#[repr(C)]
pub(super) struct DdpCallbacks {
    pub(super) context: *mut c_void,
    pub(super) begin: unsafe extern "C" fn(
        *mut c_void,
        *const TensorPtr,
        *const usize,
        usize,
        usize,
        usize,
        c_int,
        c_int,
        *mut f64,
    ) -> c_int,
    pub(super) ready: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    pub(super) end: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
}

/// See `DdpLender` in `bridge.h`.
#[repr(C)]
pub(super) struct DdpLender {
    pub(super) context: *mut c_void,
    pub(super) lend: unsafe extern "C" fn(*mut c_void, usize, *mut *mut c_void) -> *mut c_void,
    pub(super) release: unsafe extern "C" fn(*mut c_void),
}

/// See `DdpBatchNormCallbacks` in `bridge.h`.
#[repr(C)]
pub(super) struct DdpBatchNormCallbacks {
    pub(super) select: unsafe extern "C" fn(usize, *mut u64) -> c_int,
    pub(super) forward: unsafe extern "C" fn(u64, usize, *mut f64, *mut f64, *mut f64) -> c_int,
    pub(super) backward: unsafe extern "C" fn(u64, usize, *mut f64, *mut f64) -> c_int,
    pub(super) gather: unsafe extern "C" fn(u64, usize, i64, TensorPtr, *mut TensorPtr) -> c_int,
    pub(super) add_up: unsafe extern "C" fn(u64, usize, TensorPtr) -> c_int,
}

unsafe extern "C" {
    pub(super) fn ddp_error() -> *const c_char;
    pub(super) fn ddp_set_error(text: *const c_char, length: usize);
    pub(super) fn ddp_init_logging() -> c_int;
    pub(super) fn ddp_keep_freed_memory();
    pub(super) fn ddp_compute_alone() -> c_int;

    pub(super) fn ddp_store_new(
        host: *const c_char,
        port: u16,
        is_server: c_int,
        listen_fd: c_int,
        timeout_ms: i64,
        out: *mut *mut DdpStore,
    ) -> c_int;
    pub(super) fn ddp_store_free(store: *mut DdpStore);
    pub(super) fn ddp_store_set(
        store: *mut DdpStore,
        key: *const c_char,
        data: *const u8,
        length: usize,
    ) -> c_int;
    pub(super) fn ddp_store_get(
        store: *mut DdpStore,
        key: *const c_char,
        timeout_ms: i64,
        take: unsafe extern "C" fn(*mut c_void, *const u8, usize),
        context: *mut c_void,
    ) -> c_int;
    pub(super) fn ddp_store_check(
        store: *mut DdpStore,
        key: *const c_char,
        out: *mut c_int,
    ) -> c_int;

    pub(super) fn ddp_gloo_new(
        store: *mut DdpStore,
        prefix: *const c_char,
        rank: c_int,
        size: c_int,
        address: *const c_char,
        timeout_ms: i64,
        out: *mut *mut DdpGroup,
    ) -> c_int;
    pub(super) fn ddp_gloo_free(group: *mut DdpGroup);
    pub(super) fn ddp_gloo_all_reduce(
        group: *mut DdpGroup,
        tensor: TensorPtr,
        op: c_int,
        out: *mut *mut DdpWork,
    ) -> c_int;
    pub(super) fn ddp_gloo_broadcast(
        group: *mut DdpGroup,
        tensor: TensorPtr,
        root: c_int,
        out: *mut *mut DdpWork,
    ) -> c_int;
    pub(super) fn ddp_gloo_all_gather(
        group: *mut DdpGroup,
        output: TensorPtr,
        input: TensorPtr,
        out: *mut *mut DdpWork,
    ) -> c_int;
    pub(super) fn ddp_work_wait(work: *mut DdpWork, timeout_ms: i64, done: *mut c_int) -> c_int;
    pub(super) fn ddp_work_is_done(work: *mut DdpWork, done: *mut c_int) -> c_int;
    pub(super) fn ddp_work_free(work: *mut DdpWork);

    pub(super) fn ddp_randperm(seed: u64, n: i64, out: *mut i64) -> c_int;
    pub(super) fn ddp_multinomial(
        seed: u64,
        weights: *const f64,
        count: i64,
        samples: i64,
        replacement: c_int,
        out: *mut i64,
    ) -> c_int;
    pub(super) fn ddp_view_like(
        flat: TensorPtr,
        offset: i64,
        like: TensorPtr,
        out: *mut TensorPtr,
    ) -> c_int;
    pub(super) fn ddp_identity(tensor: TensorPtr, out: *mut usize) -> c_int;
    pub(super) fn ddp_view_use(
        parameter: TensorPtr,
        view: TensorPtr,
        held: *mut c_int,
        is_gradient: *mut c_int,
    ) -> c_int;
    pub(super) fn ddp_tensor_state(
        tensor: TensorPtr,
        holders: *mut i64,
        version: *mut i64,
    ) -> c_int;
    pub(super) fn ddp_storage_uses(tensor: TensorPtr, out: *mut i64) -> c_int;
    pub(super) fn ddp_data_alias(tensor: TensorPtr, out: *mut TensorPtr) -> c_int;
    pub(super) fn ddp_checksum(tensor: TensorPtr, out: *mut u64) -> c_int;
    pub(super) fn ddp_tensor_over(
        data: *mut c_void,
        elements: i64,
        like: TensorPtr,
        release: unsafe extern "C" fn(*mut c_void),
        context: *mut c_void,
        out: *mut TensorPtr,
    ) -> c_int;
    pub(super) fn ddp_grad_into_view(
        parameter: TensorPtr,
        view: TensorPtr,
        scale: f64,
        defer: c_int,
        state: *mut c_int,
    ) -> c_int;
    pub(super) fn ddp_set_grad(parameter: TensorPtr, view: TensorPtr) -> c_int;

    pub(super) fn ddp_lender_set(lender: *const DdpLender) -> c_int;
    pub(super) fn ddp_grad_adopt(
        parameter: TensorPtr,
        view: *mut TensorPtr,
        flat: *mut TensorPtr,
    ) -> c_int;

    pub(super) fn ddp_cuda_set_device(ordinal: c_int) -> c_int;
    pub(super) fn ddp_cuda_current_stream(ordinal: c_int, out: *mut *mut c_void) -> c_int;

    pub(super) fn ddp_engine_install() -> c_int;
    pub(super) fn ddp_engine_route(callbacks: *const DdpCallbacks) -> c_int;
    pub(super) fn ddp_leaf_watch(tensor: TensorPtr, id: u32, out: *mut *mut DdpLeaf) -> c_int;
    pub(super) fn ddp_leaf_free(leaf: *mut DdpLeaf);

    pub(super) fn ddp_version(tensor: TensorPtr, out: *mut i64) -> c_int;
    pub(super) fn ddp_in_a_graph(tensor: TensorPtr, out: *mut c_int) -> c_int;
    pub(super) fn ddp_replicate(
        sources: *const TensorPtr,
        count: usize,
        devices: *const c_int,
        replicas: usize,
        copies: *const TensorPtr,
        changed: *const u8,
    ) -> c_int;
    pub(super) fn ddp_thread_state(out: *mut *mut DdpThreadState) -> c_int;
    pub(super) fn ddp_thread_state_free(state: *mut DdpThreadState);
    pub(super) fn ddp_thread_enter(
        state: *const DdpThreadState,
        device: c_int,
        out: *mut *mut DdpThreadEntered,
    ) -> c_int;
    pub(super) fn ddp_thread_leave(entered: *mut DdpThreadEntered);

    pub(super) fn ddp_unscale_gradients(
        parameters: *const TensorPtr,
        count: usize,
        inverse_scale: f32,
        gradients: *mut usize,
        found_inf: *mut c_int,
    ) -> c_int;

    pub(super) fn ddp_optimizer_name(optimizer: *mut c_void, out: *mut *const c_char) -> c_int;
    pub(super) fn ddp_optimizer_parameters(
        optimizer: *mut c_void,
        take: unsafe extern "C" fn(*mut c_void, usize, usize, *const i64, usize),
        context: *mut c_void,
    ) -> c_int;
    pub(super) fn ddp_optimizer_save(
        optimizer: *mut c_void,
        take: unsafe extern "C" fn(*mut c_void, *const u8, usize),
        context: *mut c_void,
    ) -> c_int;
    pub(super) fn ddp_optimizer_load(
        optimizer: *mut c_void,
        data: *const u8,
        length: usize,
    ) -> c_int;
    pub(super) fn ddp_generator_state(
        cuda_index: c_int,
        take: unsafe extern "C" fn(*mut c_void, *const u8, usize),
        context: *mut c_void,
    ) -> c_int;
    pub(super) fn ddp_generator_set_state(
        cuda_index: c_int,
        data: *const u8,
        length: usize,
    ) -> c_int;
    pub(super) fn ddp_batch_norm_install(
        callbacks: *const DdpBatchNormCallbacks,
        out: *mut *mut DdpBatchNorm,
    ) -> c_int;
    pub(super) fn ddp_batch_norm_remove(installed: *mut DdpBatchNorm);
}

/// The `at::Tensor*` of a tensor, borrowed: the bridge reads it and copies the handle where it keeps one.
pub(super) fn ptr(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast_mut()
}
