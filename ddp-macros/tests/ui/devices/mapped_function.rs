#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train() {
    let devices: Vec<_> = (0..8).map(Device::Cuda).collect();
}

fn main() {}
