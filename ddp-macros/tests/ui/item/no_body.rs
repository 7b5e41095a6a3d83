#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

trait Learner {
    #[distributed]
    fn fit(&mut self);
}

fn main() {}
