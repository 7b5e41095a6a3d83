#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(debug = "all")]
fn train() {}

fn main() {}
