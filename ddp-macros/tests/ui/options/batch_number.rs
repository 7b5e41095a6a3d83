#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(batch = 64)]
fn train() {}

fn main() {}
