#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    is_main().then(|| vs.save("last.ot"));
    Ok(())
}

fn main() {}
