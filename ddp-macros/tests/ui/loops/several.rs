#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, xs: &Tensor, n: i64) {
    for start in (0..n).step_by(32) {
        opt.backward_step(&net.loss(xs.narrow(0, start, 32)));
    }
    loop {
        opt.backward_step(&net.loss(xs));
    }
}

fn main() {}
