#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    rank0(|| {
        println!("here");
        barrier();
    });
    Ok(())
}

fn main() {}
