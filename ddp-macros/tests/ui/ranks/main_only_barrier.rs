#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    main_only(|| {
        println!("here");
        barrier();
    });
    Ok(())
}

fn main() {}
