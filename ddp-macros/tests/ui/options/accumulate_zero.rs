#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(accumulate = 0)]
fn train() {}

fn main() {}
