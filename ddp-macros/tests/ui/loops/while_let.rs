#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, receiver: std::sync::mpsc::Receiver<Tensor>) {
    while let Ok(batch) = receiver.recv() {
        opt.backward_step(&net.loss(batch));
    }
}

fn main() {}
