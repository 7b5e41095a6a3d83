#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
macro_rules! train {
    () => {};
}

fn main() {}
