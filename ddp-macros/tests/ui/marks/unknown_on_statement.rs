#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net) {
    #[ddp(ignore)]
    println!("x");
}

fn main() {}
