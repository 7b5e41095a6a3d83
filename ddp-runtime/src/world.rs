//! Which rank this process is, of how many: known from the launcher, with or without a scope.
use std::sync::OnceLock;

use ddp_env::{EnvError, Launch, Topology};

/// What the launcher said, read once.
pub(crate) fn launch() -> Result<Option<&'static Launch>, EnvError> {
    static LAUNCH: OnceLock<Result<Option<Launch>, EnvError>> = OnceLock::new();
    match LAUNCH.get_or_init(Launch::from_env) {
        Ok(launch) => Ok(launch.as_ref()),
        Err(error) => Err(error.clone()),
    }
}

/// The place of this process; that of a single process where there is no launcher, or none that can be understood
/// (which [`init`](crate::init) reports).
pub(crate) fn topology() -> Topology {
    launch().ok().flatten().map_or_else(Topology::single, |launch| launch.topology)
}

/// This process's position among all, from 0. 0 without a launcher.
#[must_use]
pub fn rank() -> usize {
    topology().rank
}

/// The number of processes. 1 without a launcher.
#[must_use]
pub fn world_size() -> usize {
    topology().world_size
}

/// This process's position among those of its host, from 0.
#[must_use]
pub fn local_rank() -> usize {
    topology().local_rank
}

/// Whether this is rank 0, which prints and saves. True without a launcher.
#[must_use]
pub fn is_main() -> bool {
    topology().is_main()
}
