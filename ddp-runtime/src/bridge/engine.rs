//! The autograd engine: callbacks for each outermost backward, hooks on leaves.
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use tch::Tensor;

use super::lend::{Lend, Lending};
use super::sys::{self, DdpCallbacks, DdpLeaf, TensorPtr, ptr as tensor_ptr};
use super::{BridgeError, Result, check};

/// What the engine knows of a backward before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardKind {
    /// The gradients are to have a graph of their own.
    pub(crate) create_graph: bool,
    /// Some leaves may be left without a gradient.
    pub(crate) may_leave_undefined: bool,
    /// Synchronised BatchNorm layers on the way, each of which calls a collective.
    pub(crate) batch_norms: usize,
    /// Those among them whose collective is one of the data plane.
    pub(crate) fused_batch_norms: usize,
}

/// Who is told of every outermost backward that stores gradients.
///
/// An error ends the backward: `Tensor::f_backward` returns it as text.
pub(crate) trait BackwardObserver: Send + Sync {
    /// A backward is about to begin. `leaves` are what it will reach, in the order of the walk; the number beside each
    /// tells it apart. On the way are so many `batch_norms` that are synchronised. Returns the factor for the gradients at
    /// the roots.
    fn begin(
        &self,
        leaves: &[(usize, &Tensor)],
        kind: BackwardKind,
    ) -> std::result::Result<f64, String>;
    /// The gradient of the leaf watched as `id` is complete. On any thread of the engine.
    fn ready(&self, id: u32) -> std::result::Result<(), String>;
    /// The backward returned, or threw.
    fn end(&self, failed: bool) -> std::result::Result<(), String>;
}

/// While this lives, backwards are routed to an observer.
pub(crate) struct Route {
    callbacks: *mut DdpCallbacks,
    observer: *mut Arc<dyn BackwardObserver>,
    _lending: Option<Lending>,
}

// SAFETY: the pointers are owned by the route alone and only freed in its drop.
unsafe impl Send for Route {}

impl Route {
    /// Installs the engine (once a process) and routes backwards to `observer`. What they make may lie in the `lender`'s memory.
    ///
    /// One route at a time: the caller holds the process group's lock.
    pub(crate) fn new(
        observer: Arc<dyn BackwardObserver>,
        lender: Option<Arc<dyn Lend>>,
    ) -> Result<Self> {
        static INSTALLED: OnceLock<Result<()>> = OnceLock::new();
        INSTALLED
            .get_or_init(|| {
                // SAFETY: replaces libtorch's engine by a subclass of it; done once.
                check(unsafe { sys::ddp_engine_install() })
            })
            .clone()?;
        let lending = lender.map(Lending::by).transpose()?;
        let observer = Box::into_raw(Box::new(observer));
        let callbacks =
            Box::into_raw(Box::new(DdpCallbacks { context: observer.cast(), begin, ready, end }));
        // SAFETY: both boxes live until the drop below, which takes the route away first.
        check(unsafe { sys::ddp_engine_route(callbacks) })?;
        Ok(Self { callbacks, observer, _lending: lending })
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: after this call no new backward sees the callbacks. A route is dropped by the thread whose backwards it
        // observes, so none is under way.
        unsafe {
            sys::ddp_engine_route(ptr::null());
            drop(Box::from_raw(self.callbacks));
            drop(Box::from_raw(self.observer));
        }
    }
}

/// Runs a callback so that neither a panic nor an error crosses into C++ other than as a status.
pub(super) fn reported(body: impl FnOnce() -> std::result::Result<(), String>) -> c_int {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(text)) => text,
        Err(_) => "synchronisation panicked; its message stands above".to_owned(),
    };
    // SAFETY: the text is copied during the call.
    unsafe { sys::ddp_set_error(text.as_ptr().cast(), text.len()) };
    1
}

/// # Safety
/// `context` is the observer of a live route.
unsafe fn observer<'a>(context: *mut c_void) -> &'a Arc<dyn BackwardObserver> {
    // SAFETY: by the contract above.
    unsafe { &*context.cast::<Arc<dyn BackwardObserver>>() }
}

unsafe extern "C" fn begin(
    context: *mut c_void,
    leaves: *const TensorPtr,
    identities: *const usize,
    count: usize,
    batch_norms: usize,
    fused_batch_norms: usize,
    create_graph: c_int,
    may_leave_undefined: c_int,
    scale: *mut f64,
) -> c_int {
    reported(|| {
        // SAFETY: the engine passes `count` leaves and identities, alive during the call, and a place for the factor.
        let (observer, leaves, identities) =
            unsafe { (observer(context), slice(leaves, count), slice(identities, count)) };
        // The handles are borrowed: they must not be freed here.
        let tensors: Vec<ManuallyDrop<Tensor>> = leaves
            .iter()
            // SAFETY: a live at::Tensor*, wrapped so that it is not dropped.
            .map(|&leaf| ManuallyDrop::new(unsafe { Tensor::from_ptr(leaf) }))
            .collect();
        let leaves: Vec<(usize, &Tensor)> =
            identities.iter().copied().zip(tensors.iter().map(|tensor| &**tensor)).collect();
        let kind = BackwardKind {
            create_graph: create_graph != 0,
            may_leave_undefined: may_leave_undefined != 0,
            batch_norms,
            fused_batch_norms,
        };
        let factor = observer.begin(&leaves, kind)?;
        // SAFETY: as above.
        unsafe { *scale = factor };
        Ok(())
    })
}

unsafe extern "C" fn ready(context: *mut c_void, id: u32) -> c_int {
    // SAFETY: the engine calls only while the route lives.
    reported(|| unsafe { observer(context) }.ready(id))
}

unsafe extern "C" fn end(context: *mut c_void, failed: c_int) -> c_int {
    // SAFETY: the engine calls only while the route lives.
    reported(|| unsafe { observer(context) }.end(failed != 0))
}

/// # Safety
/// `data` spans `count` values that live as long as the result is used; it may be null when `count` is 0.
unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts(data, count) }
}

/// A watched leaf: its hook, and the accumulator that carries it.
pub(crate) struct Leaf {
    raw: *mut DdpLeaf,
}

// SAFETY: adding and removing hooks happens between backwards only; the handle itself may move between threads.
unsafe impl Send for Leaf {}

impl Leaf {
    /// Hooks `tensor`, which must be a leaf that requires a gradient.
    pub(crate) fn watch(tensor: &Tensor, id: u32) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the tensor is alive during the call; the handle keeps the accumulator after it.
        check(unsafe { sys::ddp_leaf_watch(tensor_ptr(tensor), id, &mut raw) })?;
        if raw.is_null() {
            return Err(BridgeError::new("a leaf could not be watched"));
        }
        Ok(Self { raw })
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ddp_leaf_watch and is freed once.
        unsafe { sys::ddp_leaf_free(self.raw) }
    }
}
