#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(backend = "mpi")]
fn train() {}

fn main() {}
