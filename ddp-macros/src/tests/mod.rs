//! Tests of the expansion as a function of tokens.

mod cost;
mod golden;
mod robust;
mod shapes;
