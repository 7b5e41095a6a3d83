//! All tests that need several processes or libtorch as a whole, in one binary.
mod gradients;
mod leaves;
mod reach;

use ddp_tests::Job;

/// A case of the worker.
fn worker(case: &str) -> Job {
    Job::new(env!("CARGO_BIN_EXE_ddp-worker"), case)
}
