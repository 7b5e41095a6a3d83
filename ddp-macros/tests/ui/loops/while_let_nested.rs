#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, receiver: std::sync::mpsc::Receiver<Tensor>) {
    while let Ok(batch) = receiver.recv() {
        for _ in 0..4 {
            opt.backward_step(&net.loss(batch));
        }
    }
}

fn main() {}
