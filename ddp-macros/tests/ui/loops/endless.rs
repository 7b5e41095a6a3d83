#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, xs: &Tensor, n: i64) {
    loop {
        opt.backward_step(&net.loss(xs));
    }
}

fn main() {}
