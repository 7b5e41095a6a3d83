#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    let more = || false;
    #[ddp(shard)]
    while more() {
        net.loss(1).backward();
    }
}

fn main() {}
