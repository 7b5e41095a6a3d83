#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    if is_main() && true {
        barrier();
    }
    Ok(())
}

fn main() {}
