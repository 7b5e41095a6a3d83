#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    for part in games.chunks(256) {
        for _ in 0..4 {
            opt.backward_step(&net.loss(part));
        }
    }
}

fn main() {}
