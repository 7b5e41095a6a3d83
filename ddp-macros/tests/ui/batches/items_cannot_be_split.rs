extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

struct Sample;

#[distributed(batch = "global")]
fn train(batches: Vec<Sample>) {
    #[ddp(shard)]
    for _ in batches {}
}

fn main() {}
