#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: Net, mut opt: Optimizer, games: Vec<i64>) {
    games.par_iter().for_each(|game| net.loss(game).backward());
}

fn main() {}
