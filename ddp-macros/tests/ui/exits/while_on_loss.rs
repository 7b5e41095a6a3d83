#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    let mut last = 1.0;
    while last > 1e-3 {
        for x in data.train_iter(64) {
            let loss = net.loss(x);
            opt.backward_step(&loss);
            last = loss.double_value(&[]);
        }
    }
}

fn main() {}
