#![allow(unused)]

#[path = "../prelude.rs"]
mod prelude;
use prelude::*;

#[distributed(batch = "whole")]
fn train() {}

fn main() {}
