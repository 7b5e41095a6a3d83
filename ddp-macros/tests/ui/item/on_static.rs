#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
static TRAIN: i64 = 1;

fn main() {}
