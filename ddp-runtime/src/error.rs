//! What can go wrong, with the cure.
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bridge::BridgeError;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the process group or of an operation on it.
///
/// After any of these the group is unusable: the rank should end, which [`Scope`](crate::Scope) tells the others.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment names a job that cannot be.
    #[error(transparent)]
    Environment(#[from] ddp_env::EnvError),
    /// An option, or its environment override, has a value that means nothing.
    #[error("{name} is `{value}`; {expected}")]
    Option {
        /// The option, or the variable it came from.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The group could not be set up.
    #[error("setting up the process group failed while {step}: {message}")]
    Setup {
        /// What was being done.
        step: String,
        /// What happened, and the cure where one is known.
        message: String,
    },
    /// Another rank failed, and took this one with it.
    #[error("{operation}: {who} failed: {message}")]
    Peer {
        /// What this rank was doing.
        operation: String,
        /// The rank that failed, as far as it is known.
        who: Who,
        /// What it said, or how its end was noticed.
        message: String,
    },
    /// A wait ran into its limit.
    #[error(
        "{operation}: no answer from the other ranks within {} s; one of them hangs, or takes longer than this limit, \
         which the option `timeout` or DDP_TIMEOUT sets in seconds",
        limit.as_secs()
    )]
    Timeout {
        /// What this rank was doing.
        operation: String,
        /// The limit.
        limit: Duration,
    },
    /// The ranks do different things.
    #[error("the ranks do different things: {facts}; {cure}")]
    Mismatch {
        /// What each of them does.
        facts: String,
        /// How to make them agree.
        cure: String,
    },
    /// Something that data-parallel training cannot do.
    #[error("{what}; {cure}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        cure: String,
    },
    /// One of the replicas of a [`DataParallel`](crate::DataParallel) failed.
    #[error("replica {replica} on {device:?}: {message}")]
    Replica {
        /// Its position in the list of devices.
        replica: usize,
        /// Its device.
        device: tch::Device,
        /// What libtorch or the panic said.
        message: String,
    },
    /// An earlier error has made the group unusable.
    #[error("the process group is unusable since an earlier error: {first}")]
    Poisoned {
        /// That error.
        first: String,
    },
    /// The transport between the ranks failed on this rank.
    #[error("{operation}: {message}")]
    Transport {
        /// What was being done.
        operation: String,
        /// What happened, and the cure where one is known.
        message: String,
    },
    /// A checkpoint could not be written or read.
    #[error("checkpoint {}: {what}; {cure}", path.display())]
    Checkpoint {
        /// The checkpoint, or the folder of all of them.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What to do.
        cure: String,
    },
    /// libtorch refused an operation.
    #[error("{operation}: {message}")]
    Torch {
        /// What was being done.
        operation: String,
        /// libtorch's text.
        message: String,
    },
}

/// A rank, if it is known which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// This one.
    Rank(usize),
    /// One of the others.
    Another,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Rank(rank) => write!(f, "rank {rank}"),
            Who::Another => f.write_str("another rank"),
        }
    }
}

impl Error {
    pub(crate) fn setup(step: impl Into<String>, message: impl ToString) -> Self {
        Error::Setup { step: step.into(), message: message.to_string() }
    }

    pub(crate) fn mismatch(facts: impl Into<String>, cure: impl Into<String>) -> Self {
        Error::Mismatch { facts: facts.into(), cure: cure.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), cure: cure.into() }
    }

    pub(crate) fn checkpoint(
        path: &Path,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Error::Checkpoint { path: path.to_owned(), what: what.into(), cure: cure.into() }
    }

    pub(crate) fn torch(operation: impl Into<String>, message: impl ToString) -> Self {
        Error::Torch { operation: operation.into(), message: message.to_string() }
    }

    /// Whether this only reports that another rank failed.
    pub(crate) fn is_peer(&self) -> bool {
        matches!(self, Error::Peer { .. })
    }
}

/// Names the operation that a call into libtorch was part of.
pub(crate) trait During<T> {
    /// Turns the failure into [`Error::Torch`].
    fn during(self, operation: &str) -> Result<T>;
}

impl<T> During<T> for std::result::Result<T, BridgeError> {
    fn during(self, operation: &str) -> Result<T> {
        self.map_err(|error| Error::torch(operation, error))
    }
}

impl<T> During<T> for std::result::Result<T, tch::TchError> {
    fn during(self, operation: &str) -> Result<T> {
        self.map_err(|error| Error::torch(operation, error))
    }
}
