#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(timeout = "5m")]
fn train() {}

fn main() {}
