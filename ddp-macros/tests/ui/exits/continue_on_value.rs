#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, data: &Dataset) {
    for (i, x) in data.train_iter(64).enumerate() {
        let loss = net.loss(x);
        let value = loss.double_value(&[]);
        if i > 3 && value > 100.0 {
            println!("skipped");
            continue;
        }
        opt.backward_step(&loss);
    }
}

fn main() {}
