//! cargo-ddp
fn main() {}
