#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(timeout = 1.5)]
fn train() {}

fn main() {}
