extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[deny(unused_variables)]
#[distributed]
fn train() -> i64 {
    let unused = 1;
    2
}

fn main() {}
