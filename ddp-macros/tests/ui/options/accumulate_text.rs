#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(accumulate = "4")]
fn train() {}

fn main() {}
