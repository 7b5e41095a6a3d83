#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(backend = nccl)]
fn train() {}

fn main() {}
