#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(seed = 1, timeout = 300, seed = 2)]
fn train() {}

fn main() {}
