extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

mod own {
    pub struct Iter2;
    impl Iter2 {
        pub fn new(_: f64, _: f64, _: i64) -> std::ops::Range<i64> {
            0..1
        }
    }
}

#[distributed]
fn train() {
    for _ in own::Iter2::new(1.0, 2.0, 3) {}
}

fn main() {}
