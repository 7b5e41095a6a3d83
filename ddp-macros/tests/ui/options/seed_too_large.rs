#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(seed = 99999999999999999999)]
fn train() {}

fn main() {}
