#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    'epochs: for _ in 0..9 {
        for x in data.train_iter(64) {
            let loss = net.loss(x);
            opt.backward_step(&loss);
            if loss.double_value(&[]) < 1e-3 {
                break 'epochs;
            }
        }
    }
}

fn main() {}
