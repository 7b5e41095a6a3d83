#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(crate = ddp_runtime)]
fn train() {}

fn main() {}
