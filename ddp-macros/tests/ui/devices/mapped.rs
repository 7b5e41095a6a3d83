#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train() {
    let stores: Vec<_> = (0..8).map(|i| VarStore::new(Device::Cuda(i))).collect();
}

fn main() {}
