#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, mut games: Vec<i64>) {
    games.shuffle(&mut rand::rng());
    #[ddp(shard)]
    for game in games {
        net.loss(game).backward();
    }
}

fn main() {}
