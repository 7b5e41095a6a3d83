extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[distributed]
fn train() {
    println!("{} {}", 1);
}

fn main() {}
