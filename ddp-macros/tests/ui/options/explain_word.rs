#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(explain = 1)]
fn train() {}

fn main() {}
