#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: Net, mut opt: Optimizer, games: Vec<i64>) {
    std::thread::scope(|s| {
        s.spawn(|| {
            net.loss(1).backward();
        });
    });
}

fn main() {}
