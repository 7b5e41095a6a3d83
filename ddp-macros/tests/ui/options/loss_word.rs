#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(loss = "none")]
fn train() {}

fn main() {}
