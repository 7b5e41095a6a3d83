#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(print = "none")]
fn train() {}

fn main() {}
