#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
mod training {
    fn fit() {}
}

fn main() {}
