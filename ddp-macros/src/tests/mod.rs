//! Tests of the expansion as a function of tokens.

mod golden;
mod robust;
mod shapes;
