#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(seed = -1)]
fn train() {}

fn main() {}
