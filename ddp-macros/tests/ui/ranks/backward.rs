#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    if rank() == 0 {
        net.loss(1).backward();
    }
    Ok(())
}

fn main() {}
