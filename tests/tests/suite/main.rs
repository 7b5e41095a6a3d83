//! All tests that need several processes or libtorch as a whole, in one binary.
mod accumulate;
mod alone;
mod batch_norm;
mod by_hand;
mod checkpoint;
mod data_parallel;
mod dist;
mod failures;
mod finish;
mod global;
mod grad_scaler;
mod gradients;
mod graphs;
mod hooks;
mod hosts;
mod leaves;
mod loader;
mod metrics;
mod mismatch;
mod nccl;
mod programs;
mod reach;
mod shapes_loops;
mod shapes_steps;
mod signals;
mod split;
mod timeline;
mod trajectories;
mod truth;
mod uneven;
mod votes;

use ddp_tests::Job;

/// A case of the worker.
fn worker(case: &str) -> Job {
    Job::new(env!("CARGO_BIN_EXE_ddp-worker"), case)
}
