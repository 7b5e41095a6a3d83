#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
trait Learner {
    fn fit(&self) {}
}

fn main() {}
