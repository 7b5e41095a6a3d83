#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: Net, mut opt: Optimizer, games: Vec<i64>) {
    std::thread::spawn(move || opt.backward_step(&net.loss(1)));
}

fn main() {}
