//! Every form of a signature, and each option.

#![allow(unsafe_code)] // An unsafe function is one of the forms.

use crate::__private::{Device, VarStore, notes};
use ::std::fmt::Debug;
use ddp_macros::distributed;

trait Learner: Sized {
    const RATE: f64;

    #[distributed]
    fn fit<C: Into<f64>, const N: usize>(
        &mut self,
        config: C,
        rows: &[[f64; N]],
    ) -> Result<f64, String>
    where
        Self: Debug,
    {
        if rows.is_empty() {
            return Err(format!("{self:?} has no rows"));
        }
        Ok(config.into() * Self::RATE * rows.len() as f64)
    }

    fn raw(self: Box<Self>) -> Self;
}

#[derive(Debug)]
struct Net;

impl Learner for Net {
    const RATE: f64 = 0.5;

    #[distributed]
    #[inline]
    fn raw(self: Box<Self>) -> Self {
        *self
    }
}

#[test]
fn trait_methods_with_generics() {
    assert_eq!(Net.fit::<f32, 2>(4.0, &[[0.0; 2]; 3]), Ok(6.0));
    assert_eq!(Net.fit(1.0, &[[0.0; 0]; 0]), Err("Net has no rows".to_owned()));
    assert_eq!(notes(), ["enter fit", "left", "enter fit", "abandoned"]);
    let Net = Box::new(Net).raw();
}

#[distributed]
unsafe extern "C" fn unsafe_extern(x: *const i64) -> i64 {
    // SAFETY: the test passes a valid pointer.
    unsafe { *x }
}

#[distributed]
pub(crate) fn patterns((a, b): (i64, i64), [c, ..]: [i64; 3], mut d: i64, _: &str) -> i64 {
    d += 1;
    a + b + c + d
}

#[distributed]
fn lifetimes<'a, 'b: 'a>(left: &'a str, right: &'b str, _: &'b str) -> &'a str {
    if left.is_empty() { right } else { left }
}

#[distributed]
fn takes_impl(items: impl IntoIterator<Item = i64>, each: &mut dyn FnMut(i64)) {
    for item in items {
        each(item);
    }
}

#[distributed]
fn r#try() -> u8 {
    1
}

static FIVE: i64 = 5;

#[test]
fn other_signatures() {
    // SAFETY: the pointer is that of a static.
    assert_eq!(unsafe { unsafe_extern(&raw const FIVE) }, 5);
    assert_eq!(patterns((1, 2), [3, 0, 0], 3, ""), 10);
    assert_eq!(lifetimes("", "b", ""), "b");
    let mut sum = 0;
    takes_impl([1, 2], &mut |x| sum += x);
    assert_eq!(sum, 3);
    assert_eq!(r#try(), 1);
    assert_eq!(notes().last().unwrap(), "left");
}

#[distributed]
fn stores(vs: &VarStore, other: &mut VarStore, own: VarStore, plain: &Device) -> &'static str {
    drop(own);
    assert_eq!(*plain, Device::Cpu);
    other.0 = vs.0;
    other.0
}

#[test]
fn stores_among_the_parameters_are_registered() {
    let vs = VarStore("a");
    assert_eq!(stores(&vs, &mut VarStore("b"), VarStore("c"), &Device::Cpu), "a");
    assert_eq!(notes(), ["enter stores", "register", "register", "register", "left"]);
}

#[distributed]
fn devices(gpu: Option<usize>) -> (Device, Device, Device) {
    let chosen = gpu.map_or_else(Device::cuda_if_available, Device::Cuda);
    let fixed = Device::Cuda(0);
    match Device::Cpu {
        Device::Cuda(_) => unreachable!(),
        device @ Device::Cpu => (chosen, fixed, device),
    }
}

/// A function of the framework.
mod tch {
    pub(super) fn manual_seed(_: i64) {}
}

#[distributed]
fn seeds() {
    {
        use tch::manual_seed;
        manual_seed(7);
    }
    tch::manual_seed(8);
}

#[test]
fn seeds_go_through_the_runtime() {
    seeds();
    assert_eq!(notes(), ["enter seeds", "manual_seed 7", "manual_seed 8", "left"]);
}

#[test]
fn devices_become_the_ranks_device() {
    let own = Device::Cuda(3);
    assert_eq!(devices(None), (own, own, Device::Cpu));
    assert_eq!(devices(Some(1)), (own, own, Device::Cpu));
}

#[distributed(
    backend = "gloo",
    batch = "global",
    sync_batch_norm,
    uneven = "join",
    accumulate = 4,
    print = "all",
    compress = "bf16"
)]
fn more_options() {}

#[distributed(crate = "crate", seed = 1, timeout = 2, bucket_mb = 0.5)]
fn options() {}

#[test]
fn options_are_handed_on_in_order() {
    options();
    assert_eq!(notes()[0], "enter options seed=1 timeout_secs=2 bucket_mb=0.5");
    more_options();
    let expected = "enter more_options backend=\"gloo\" batch=Global sync_batch_norm=true \
                    uneven=\"join\" accumulate=4 print=\"all\" compress=\"bf16\"";
    assert_eq!(notes()[0], expected);
}
