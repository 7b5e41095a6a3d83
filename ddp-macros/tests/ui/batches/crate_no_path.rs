extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::SplitBatch;

#[derive(SplitBatch)]
#[batch(crate = 3)]
struct Batch {
    rows: Vec<i64>,
}

fn main() {}
