#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(shard)]
    let loss = net.loss(1);
}

fn main() {}
