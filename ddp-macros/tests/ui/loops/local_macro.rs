#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed]
fn train(net: &Net, games: &[i64]) {
    macro_rules! descend {
        ($loss:expr) => {
            $loss.backward()
        };
    }
    for part in games.chunks(256) {
        descend!(net.loss(part));
    }
}

fn main() {}
