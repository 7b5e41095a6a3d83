#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(timeout = 300u64)]
fn train() {}

fn main() {}
