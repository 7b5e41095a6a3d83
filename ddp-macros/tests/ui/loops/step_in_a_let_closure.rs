#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    let mut step = |part: &[i64]| opt.backward_step(&net.loss(part));
    for part in games.chunks(256) {
        step(part);
    }
}

fn main() {}
