#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, loader: Vec<Tensor>) {
    for batch in loader {
        let loss = net.loss(batch);
        loss.backward();
        opt.step();
    }
}

fn main() {}
