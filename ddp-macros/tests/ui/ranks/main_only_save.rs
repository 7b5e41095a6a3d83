#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, vs: &VarStore) -> Result<(), String> {
    main_only(|| vs.save("last.ot"));
    Ok(())
}

fn main() {}
