#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    let main = rank() == 0;
    if main {
        vs.save("last.ot")?;
    }
    Ok(())
}

fn main() {}
