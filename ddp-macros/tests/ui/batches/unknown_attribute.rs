extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::SplitBatch;

#[derive(SplitBatch)]
struct Batch {
    rows: Vec<i64>,
    #[batch(skip)]
    name: String,
}

fn main() {}
