#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    for x in data.train_iter(64) {
        let loss = net.loss(x);
        if loss.double_value(&[]).is_finite() {
            opt.backward_step(&loss);
        }
    }
}

fn main() {}
