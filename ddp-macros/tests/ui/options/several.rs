#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(bach = "global", timeout = 0, print = "none")]
fn train() {}

fn main() {}
