//! The launcher from outside: what its ranks see, what is printed, and that nothing stays behind.
//!
//! The ranks are small shell scripts, so that these tests need neither a build nor libtorch; the
//! module `build` compiles a project of a few lines.

#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

mod build;
mod contract;
mod doctor;
mod ending;
mod expand;
mod failure;
mod harness;
mod output;
