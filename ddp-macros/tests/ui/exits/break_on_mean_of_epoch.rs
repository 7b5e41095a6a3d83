#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    for _ in 0..9 {
        let mut total = 0.0;
        for x in data.train_iter(64) {
            let loss = net.loss(x);
            opt.backward_step(&loss);
            total += loss.double_value(&[]);
        }
        if total < 1.0 {
            break;
        }
    }
}

fn main() {}
