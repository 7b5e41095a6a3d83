#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(bucket_mb = 0)]
fn train() {}

fn main() {}
