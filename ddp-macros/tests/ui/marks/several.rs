#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(shart)]
    for x in [1, 2] {
        net.loss(x).backward();
    }
    #[ddp(each)]
    let n = 1;
}

fn main() {}
