extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[deny(unreachable_code)]
#[distributed]
fn train() -> i64 {
    return 1;
    println!("never");
}

fn main() {}
