#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    for i in 0..games.len() {
        opt.backward_step(&net.loss(games[i]));
    }
}

fn main() {}
