#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, xs: &Tensor, n: i64) {
    let order: Vec<i64> = (0..n).collect();
    for i in order {
        opt.backward_step(&net.loss(xs.narrow(0, i, 1)));
    }
}

fn main() {}
