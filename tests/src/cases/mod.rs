//! The cases of the worker, one file a topic. Each runs on every rank and compares by itself where it can.
pub mod compare;
mod gradients;
mod leaves;
mod reach;

use anyhow::{Result, bail};

type Case = fn(&[String]) -> Result<()>;

const CASES: &[(&str, Case)] =
    &[("gradients", gradients::run), ("leaves", leaves::run), ("reach", reach::run)];

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
