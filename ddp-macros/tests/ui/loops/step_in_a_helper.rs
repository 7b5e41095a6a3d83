#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

fn update(net: &Net, opt: &mut Optimizer, part: &[i64]) {
    opt.backward_step(&net.loss(part));
}

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    for part in games.chunks(256) {
        update(net, opt, part);
    }
}

fn main() {}
