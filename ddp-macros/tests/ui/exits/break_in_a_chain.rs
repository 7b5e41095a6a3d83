#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    for x in data.train_iter(64) {
        let loss = net.loss(x);
        opt.backward_step(&loss);
        if let Some(limit) = Some(1e-3)
            && loss.double_value(&[]) < limit
        {
            break;
        }
    }
}

fn main() {}
