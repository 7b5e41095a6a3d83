#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(crate = "ddp runtime")]
fn train() {}

fn main() {}
