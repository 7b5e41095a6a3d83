#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    match rank() {
        0 => vs.save("last.ot")?,
        _ => {}
    }
    Ok(())
}

fn main() {}
