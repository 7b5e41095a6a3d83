//! What can be wrong with an environment.

use crate::topology::TopologyError;

/// An environment from which no launch can be read. Each text ends in what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A variable that is needed is not there.
    #[error("{present} is set, but {missing} is not; {cure}")]
    Missing {
        /// The variable that is needed.
        missing: &'static str,
        /// The variable that says that there is a launcher.
        present: &'static str,
        /// What to do.
        cure: &'static str,
    },
    /// A variable with a value that cannot be read.
    #[error("{name}=\"{value}\" is not {expected}; {cure}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it has to be.
        expected: &'static str,
        /// What to do.
        cure: &'static str,
    },
    /// Two variables that cannot both be right.
    #[error("{name}={value}, but {other}={other_value}; {cure}")]
    Contradiction {
        /// One variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The other one.
        other: &'static str,
        /// Its value.
        other_value: String,
        /// What to do.
        cure: &'static str,
    },
    /// Numbers that do not fit each other.
    #[error("the environment of {launcher} describes no process of a job: {source}")]
    Topology {
        /// Who set the environment.
        launcher: &'static str,
        /// What does not fit.
        source: TopologyError,
    },
    /// An interactive shell that is one task of several.
    #[error(
        "this shell is task {rank} of {world_size} of a SLURM step with a terminal (srun --pty); \
         start training with `cargo ddp run` or with srun, or run `env -u SLURM_STEP_ID` before \
         the command for a single process"
    )]
    InteractiveStep {
        /// Task of the shell.
        rank: usize,
        /// Tasks of the step.
        world_size: usize,
    },
}
