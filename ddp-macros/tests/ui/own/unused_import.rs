extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[deny(unused_imports)]
#[distributed]
fn train() {
    use std::fmt::Write;
    println!("x");
}

fn main() {}
