#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
const TRAIN: i64 = 1;

fn main() {}
