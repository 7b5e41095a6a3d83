#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    for epoch in 0..9 {
        for part in games.chunks(256) {
            opt.backward_step(&net.loss((epoch, part)));
        }
    }
}

fn main() {}
