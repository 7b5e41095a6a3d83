#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, xs: &Tensor, n: i64) {
    let mut i = 0;
    while i < n {
        opt.backward_step(&net.loss(xs.narrow(0, i, 32)));
        i += 32;
    }
}

fn main() {}
