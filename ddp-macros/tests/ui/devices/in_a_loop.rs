#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train() {
    for i in 0..8 {
        let vs = VarStore::new(Device::Cuda(i as usize));
    }
}

fn main() {}
