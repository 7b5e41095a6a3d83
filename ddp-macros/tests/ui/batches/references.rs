extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[distributed(batch = "global")]
fn train(batches: &Vec<Vec<i64>>) {
    #[ddp(shard)]
    for _ in batches {}
}

fn main() {}
