//! Memory in which a backward makes large gradients: the allocator that asks for it, and the gradients that lie there.
use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use tch::Tensor;

use super::sys::{self, DdpLender, TensorPtr, ptr as tensor_ptr};
use super::tensor::owned;
use super::{Result, check};

/// What keeps lent memory alive.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Who has memory for the tensors that a backward makes.
pub(crate) trait Lend: Send + Sync {
    /// Memory for a tensor of so many bytes, aligned to 64, that is the tensor's until the owner is dropped. Inside a backward,
    /// also from within the callbacks of its observer.
    fn lend(&self, bytes: usize) -> Option<(NonNull<u8>, Owner)>;
}

/// While this lives, backwards ask for memory.
pub(crate) struct Lending {
    lender: *mut DdpLender,
    who: *mut Arc<dyn Lend>,
}

// SAFETY: the pointers are owned by this value alone and only freed in its drop.
unsafe impl Send for Lending {}

impl Lending {
    /// One at a time, set and dropped by the thread whose backwards it serves.
    pub(crate) fn by(who: Arc<dyn Lend>) -> Result<Self> {
        let who = Box::into_raw(Box::new(who));
        let lender = Box::into_raw(Box::new(DdpLender { context: who.cast(), lend, release }));
        let lending = Self { lender, who };
        // SAFETY: both boxes live until the drop below, which takes the lender away first.
        check(unsafe { sys::ddp_lender_set(lender) })?;
        Ok(lending)
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        // SAFETY: only a backward asks, and none is under way on the thread that drops this. What was lent has an owner of its
        // own.
        unsafe {
            sys::ddp_lender_set(ptr::null());
            drop(Box::from_raw(self.lender));
            drop(Box::from_raw(self.who));
        }
    }
}

unsafe extern "C" fn lend(
    context: *mut c_void,
    bytes: usize,
    owner: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: the allocator asks only while the lender is set.
    let who = unsafe { &*context.cast::<Arc<dyn Lend>>() };
    // Without memory of ours the tensor lies where it would have lain anyway.
    let lent = catch_unwind(AssertUnwindSafe(|| who.lend(bytes))).ok().flatten();
    let Some((data, keeps)) = lent else { return ptr::null_mut() };
    // SAFETY: the allocator passes a place for the owner.
    unsafe { *owner = Box::into_raw(Box::new(keeps)).cast() };
    data.as_ptr().cast()
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: made by `lend` above, and released once.
    drop(unsafe { Box::from_raw(owner.cast::<Owner>()) });
}

/// A gradient in lent memory.
pub(crate) struct Adopted {
    /// The gradient itself.
    pub(crate) view: Tensor,
    /// Its elements, in the order in which they lie.
    pub(crate) flat: Tensor,
}

/// The gradient of this parameter, if it lies in lent memory that nobody else holds, laid out as autograd's contract says.
pub(crate) fn adopt_gradient(parameter: &Tensor) -> Result<Option<Adopted>> {
    let (mut view, mut flat): (TensorPtr, TensorPtr) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the parameter is alive during the call; both tensors are written together, or neither.
    check(unsafe { sys::ddp_grad_adopt(tensor_ptr(parameter), &mut view, &mut flat) })?;
    Ok((!view.is_null()).then(|| Adopted { view: owned(view), flat: owned(flat) }))
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::sync::Mutex;

    use tch::{Device, Kind};

    use super::*;
    use crate::bridge::{BackwardKind, BackwardObserver, Leaf, Route};

    const SIDE: i64 = 600;
    const BYTES: usize = (SIDE * SIDE) as usize * 4;
    /// Other tests have leaves of their own, with small numbers.
    const FIRST: u32 = 1_000;

    struct Block(NonNull<u8>);

    // SAFETY: plain memory.
    unsafe impl Send for Block {}
    // SAFETY: as above.
    unsafe impl Sync for Block {}

    impl Block {
        fn layout() -> Layout {
            Layout::from_size_align(BYTES, 64).unwrap()
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: allocated below with the same layout.
            unsafe { dealloc(self.0.as_ptr(), Block::layout()) }
        }
    }

    #[derive(Default)]
    struct Lender(Mutex<Vec<Arc<Block>>>);

    impl Lend for Lender {
        fn lend(&self, bytes: usize) -> Option<(NonNull<u8>, Owner)> {
            if bytes != BYTES {
                return None;
            }
            // SAFETY: the size is not zero.
            let start = NonNull::new(unsafe { alloc_zeroed(Block::layout()) })?;
            let block = Arc::new(Block(start));
            self.0.lock().unwrap().push(Arc::clone(&block));
            Some((start, block))
        }
    }

    impl Lender {
        fn has(&self, address: usize) -> bool {
            self.0.lock().unwrap().iter().any(|block| block.0.as_ptr() as usize == address)
        }
    }

    /// The leaves, and where the gradient of each lay when it was complete, if it could be adopted.
    struct Observer {
        leaves: Mutex<Vec<Tensor>>,
        adopted: Mutex<Vec<Option<usize>>>,
    }

    impl BackwardObserver for Observer {
        fn begin(
            &self,
            _: &[(usize, &Tensor)],
            _: BackwardKind,
        ) -> std::result::Result<f64, String> {
            Ok(1.0)
        }

        fn ready(&self, id: u32) -> std::result::Result<(), String> {
            let Some(place) = id.checked_sub(FIRST) else { return Ok(()) };
            let adopted = adopt_gradient(&self.leaves.lock().unwrap()[place as usize]).unwrap();
            self.adopted.lock().unwrap().push(adopted.map(|adopted| {
                assert_eq!(adopted.flat.data_ptr(), adopted.view.data_ptr());
                assert_eq!(adopted.flat.size(), [SIDE * SIDE]);
                adopted.flat.data_ptr() as usize
            }));
            Ok(())
        }

        fn end(&self, _: bool) -> std::result::Result<(), String> {
            Ok(())
        }
    }

    /// Where the gradients of the leaves of `loss` lay, with the lender that was asked.
    fn backward(leaves: &[&Tensor], loss: &Tensor) -> (Vec<Option<usize>>, Arc<Lender>) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lender = Arc::new(Lender::default());
        let observer = Arc::new(Observer {
            leaves: Mutex::new(leaves.iter().map(|leaf| leaf.shallow_clone()).collect()),
            adopted: Mutex::default(),
        });
        let route = Route::new(Arc::clone(&observer) as _, Some(Arc::clone(&lender) as _)).unwrap();
        let watched: Vec<Leaf> =
            (FIRST..).zip(leaves).map(|(id, leaf)| Leaf::watch(leaf, id).unwrap()).collect();
        loss.backward();
        drop((route, watched));
        let adopted = observer.adopted.lock().unwrap().clone();
        (adopted, lender)
    }

    fn leaf() -> Tensor {
        Tensor::randn([SIDE, SIDE], (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    #[test]
    fn gradients_lie_in_lent_memory_which_lives_as_long_as_they() {
        let (mut weight, other) = (leaf(), leaf());
        let input = Tensor::randn([3, SIDE], (Kind::Float, Device::Cpu));
        // The gradient of a matrix product; of a sum, one for two leaves, of which one gets a copy; of a leaf used twice.
        let product = input.matmul(&weight.tr()).sum(Kind::Float);
        let loss = product + (&weight + &other).square().sum(Kind::Float);
        let (adopted, lender) = backward(&[&weight, &other], &loss);
        assert_eq!(adopted.len(), 2);
        for address in adopted {
            assert!(lender.has(address.expect("it lies alone in lent memory")));
        }
        let expected =
            input.sum_dim_intlist(&[0_i64][..], false, Kind::Float).expand([SIDE, SIDE], false)
                + (&weight + &other).detach() * 2.0;
        let gradient = weight.grad();
        assert!(gradient.allclose(&expected, 1e-4, 1e-4, false));
        let held =
            || lender.0.lock().unwrap().iter().filter(|block| Arc::strong_count(block) > 1).count();
        assert_eq!(held(), 2);
        weight.zero_grad();
        drop((weight, other, loss, gradient));
        assert_eq!(held(), 0);
    }

    #[test]
    fn the_transpose_of_a_product_is_adopted_as_every_linear_layer_makes_one() {
        let weight = leaf();
        let input = Tensor::randn([3, SIDE], (Kind::Float, Device::Cpu));
        let loss = input.linear(&weight, None::<&Tensor>).square().sum(Kind::Float);
        let (adopted, lender) = backward(&[&weight], &loss);
        assert!(lender.has(adopted[0].expect("it lies alone in lent memory")));
        assert_eq!(adopted[0], Some(weight.grad().data_ptr() as usize));
        let expected = input.matmul(&weight.detach().tr()).tr().matmul(&input) * 2.0;
        assert!(weight.grad().allclose(&expected, 1e-3, 1e-3, false));
    }

    #[test]
    fn memory_without_an_owner_may_have_the_size_of_a_gradient() {
        let images = Tensor::randn([9, 32, 27, 27], (Kind::Float, Device::Cpu));
        let filters = Tensor::randn([64, 32, 3, 3], (Kind::Float, Device::Cpu));
        let filters = filters.set_requires_grad(true);
        // oneDNN puts the output's gradient into its own order, in memory that it asks for and frees by its address alone.
        let output = images.conv2d(&filters, None::<&Tensor>, 1, 0, 1, 1);
        assert_eq!(output.numel() * 4, BYTES);
        let (_, lender) = backward(&[&filters], &output.square().sum(Kind::Float));
        let blocks = lender.0.lock().unwrap();
        assert!(blocks.len() > 1);
        assert!(blocks.iter().all(|block| Arc::strong_count(block) == 1));
    }

    #[test]
    fn what_another_tensor_sees_is_not_adopted() {
        let (flat, square) = (Tensor::zeros([SIDE * SIDE], (Kind::Float, Device::Cpu)), leaf());
        let flat = flat.set_requires_grad(true);
        // One gradient for both, of which the second leaf gets a view.
        let loss = (&square + flat.view([SIDE, SIDE])).exp().sum(Kind::Float);
        let (adopted, _) = backward(&[&square], &loss);
        let (one, two) = (square.grad(), flat.grad());
        let shared = one.data_ptr() == two.data_ptr();
        assert!(!shared || adopted == [None], "{adopted:?}");
        // The first leaf gets a view of what is yet to be multiplied for the second one.
        let (plain, square) = (leaf(), leaf());
        let doubled = (&square * 2.0).view([-1]);
        let loss = (doubled + plain.view([-1])).square().sum(Kind::Float);
        let (adopted, _) = backward(&[&plain, &square], &loss);
        assert!(matches!(adopted[..], [None, Some(_)]), "{adopted:?}");
        // Outside a backward nothing is asked for.
        let plain = &square * 2.0;
        assert!(adopt_gradient(&plain.set_requires_grad(false)).unwrap().is_none());
    }
}
