#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(uneven = "drop")]
fn train() {}

fn main() {}
