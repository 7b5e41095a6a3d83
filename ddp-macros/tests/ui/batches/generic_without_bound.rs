extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::{SplitBatch, distributed};

#[derive(SplitBatch)]
struct Batch<T>(T);

#[distributed(batch = "global")]
fn train<T>(batches: Vec<Batch<T>>) {
    #[ddp(shard)]
    for _ in batches {}
}

fn main() {}
