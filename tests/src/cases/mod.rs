//! The cases of the worker, one file a topic. Each runs on every rank and compares by itself where it can.
mod accumulate;
mod alone;
mod batch_norm;
mod by_hand;
mod checkpoint;
pub mod compare;
mod data_parallel;
mod dist;
mod failures;
mod finish;
mod global;
mod gpu;
mod grad_scaler;
mod gradients;
mod graphs;
mod hooks;
mod leaves;
mod loader;
mod metrics;
mod mismatch;
mod optim;
mod programs;
mod reach;
mod shapes;
mod signals;
mod split;
mod timeline;
mod uneven;
mod votes;

use anyhow::{Result, bail};

type Case = fn(&[String]) -> Result<()>;

const CASES: &[(&str, Case)] = &[
    ("accumulate", accumulate::run),
    ("alone", alone::run),
    ("batch-norm", batch_norm::run),
    ("by-hand", by_hand::run),
    ("checkpoint", checkpoint::run),
    ("data-parallel", data_parallel::run),
    ("dist", dist::run),
    ("failures", failures::run),
    ("finish", finish::run),
    ("global", global::run),
    ("gpu", gpu::run),
    ("grad-scaler", grad_scaler::run),
    ("gradients", gradients::run),
    ("graphs", graphs::run),
    ("hooks", hooks::run),
    ("leaves", leaves::run),
    ("loader", loader::run),
    ("metrics", metrics::run),
    ("mismatch", mismatch::run),
    ("optim", optim::run),
    ("programs", programs::run),
    ("reach", reach::run),
    ("shapes-loops", shapes::loops::run),
    ("shapes-steps", shapes::steps::run),
    ("signals", signals::run),
    ("split", split::run),
    ("timeline", timeline::run),
    ("trajectories", shapes::trajectories::run),
    ("uneven", uneven::run),
    ("votes", votes::run),
];

/// All cases.
#[must_use]
pub fn names() -> Vec<&'static str> {
    CASES.iter().map(|(name, _)| *name).collect()
}

/// Runs a case.
///
/// # Errors
/// When there is no such case, and whatever the case finds wrong.
pub fn run(name: &str, args: &[String]) -> Result<()> {
    match CASES.iter().find(|(known, _)| *known == name) {
        Some((_, case)) => case(args),
        None => bail!("no case is called {name}; there are {}", names().join(", ")),
    }
}
