#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    let _ = rank() == 0 && {
        barrier();
        true
    };
    Ok(())
}

fn main() {}
