extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[distributed]
fn train() -> Result<i64, String> {
    if true {
        return Err(1);
    }
    Ok(1)
}

fn main() {}
