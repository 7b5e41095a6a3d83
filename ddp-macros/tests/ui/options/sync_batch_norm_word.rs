#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(sync_batch_norm = "yes")]
fn train() {}

fn main() {}
