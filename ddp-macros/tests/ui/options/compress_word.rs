#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(compress = "zip")]
fn train() {}

fn main() {}
