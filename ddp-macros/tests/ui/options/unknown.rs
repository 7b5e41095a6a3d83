#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(bach = "global")]
fn train() {}

fn main() {}
