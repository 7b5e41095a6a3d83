#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, xs: &Tensor, n: i64) {
    for i in 0..n / 32 {
        let start = i * 32;
        let end = start + 32;
        opt.backward_step(&net.loss(xs.i(start..end)));
    }
}

fn main() {}
