#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

unsafe extern "C" {
    #[distributed]
    fn fit(n: i64);
}

fn main() {}
