#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train() {
    let left = VarStore::new(Device::Cuda(0));
    let right = VarStore::new(Device::Cuda(1));
}

fn main() {}
