#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

struct Trainer;

#[distributed]
impl Trainer {
    fn fit(&self) {}
}

fn main() {}
