#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(bucket_mb = "25")]
fn train() {}

fn main() {}
