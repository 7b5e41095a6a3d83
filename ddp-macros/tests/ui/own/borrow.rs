extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

#[distributed]
fn train(mut names: Vec<String>) -> usize {
    let first = &names[0];
    names.push(String::new());
    println!("{first}");
    names.len()
}

fn main() {}
