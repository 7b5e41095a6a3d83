//! The harness for tests with several processes: starts ranks, waits with a limit, shows every rank's log tail on failure.
//!
//! A test names a case of the worker binary (`cases/`) and the number of ranks. The ranks are real processes that talk over
//! real transports on loopback. None outlives the test.
pub mod cases;
pub mod kernels;
mod process;

pub use process::{Job, Outcome, RankOutcome};
