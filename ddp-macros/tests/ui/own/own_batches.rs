extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

struct Rows;

impl Rows {
    fn train_iter(&self, n: i64) -> std::ops::Range<i64> {
        0..n
    }
}

#[distributed]
fn train(rows: &Rows, data: &Dataset) -> usize {
    data.train_iter(8).count() + rows.train_iter(8).count()
}

fn main() {}
