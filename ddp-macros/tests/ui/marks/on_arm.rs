#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    match 1 {
        #[ddp(shard)]
        1 => {}
        _ => {}
    }
}

fn main() {}
