#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train() {
    let device = match rank() {
        0 => Device::Cuda(0),
        _ => Device::Cuda(1),
    };
}

fn main() {}
