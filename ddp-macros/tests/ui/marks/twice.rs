#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(shard)]
    #[ddp(each)]
    for x in [1, 2] {
        net.loss(x).backward();
    }
}

fn main() {}
