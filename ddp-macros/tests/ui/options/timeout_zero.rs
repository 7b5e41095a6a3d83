#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(timeout = 0)]
fn train() {}

fn main() {}
