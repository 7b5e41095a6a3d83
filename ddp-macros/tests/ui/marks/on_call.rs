#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(each)]
    net.loss(1).backward();
}

fn main() {}
