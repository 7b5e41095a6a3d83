extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[deny(unused_must_use)]
#[distributed]
fn train(vs: &VarStore) -> i64 {
    vs.save("last.ot");
    2
}

fn main() {}
