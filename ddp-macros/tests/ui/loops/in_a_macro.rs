#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, opt: &mut Optimizer, games: &[i64]) {
    println!("{}", {
        for part in games.chunks(256) {
            opt.backward_step(&net.loss(part));
        }
        1
    });
}

fn main() {}
