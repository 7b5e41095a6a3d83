#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    if rank() == 0 {
        println!("{}", ddp::mean(1.0));
    }
    Ok(())
}

fn main() {}
