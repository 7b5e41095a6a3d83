#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(shard)]
    loop {
        net.loss(1).backward();
    }
}

fn main() {}
