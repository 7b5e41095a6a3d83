#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    for (i, part) in games.chunks(256).enumerate() {
        opt.backward_step(&net.loss((i, part)));
    }
}

fn main() {}
