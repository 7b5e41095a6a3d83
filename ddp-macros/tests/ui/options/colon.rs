#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(batch: "global")]
fn train() {}

fn main() {}
