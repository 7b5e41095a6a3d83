//! What keeps a job from starting. What happens after that is in the job's report.

use std::io;
use std::path::PathBuf;

use crate::program::ProgramError;

/// Why no rank was started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("cargo-expand is not installed; `cargo install cargo-expand` provides it")]
    NoExpand,
    #[error(
        "{ranks} ranks asked for, but {gpus} GPUs are visible on this host; use -n {gpus}, or \
         --share-gpus for several ranks a GPU, or set DDP_BACKEND=gloo if the program trains on \
         the CPU"
    )]
    TooFewGpus { ranks: usize, gpus: usize },
    #[error(
        "port {port} of {addr} is taken; give another --master-port, or none to get a free one"
    )]
    PortTaken { addr: String, port: u16 },
    #[error(
        "{addr} is no address of this host, so rank 0 cannot listen there ({source}); \
         --master-addr is the address of the host with --node-rank 0"
    )]
    NotOurAddress { addr: String, source: io::Error },
    #[error("--master-addr {addr} is for a job on several hosts; add --nnodes, or leave it out")]
    AddressForOneHost { addr: String },
    #[error("a job on {nnodes} hosts needs --master-addr, the address of the host of rank 0")]
    NoAddress { nnodes: usize },
    #[error("--node-rank is {node_rank}, but --nnodes is {nnodes}; hosts count from 0")]
    NodeRank { node_rank: usize, nnodes: usize },
    #[error("{name} is `{value}`, {expected}")]
    Grace { name: &'static str, value: String, expected: String },
    #[error("{nnodes} hosts with {ranks} ranks each are more than can be counted")]
    TooManyRanks { nnodes: usize, ranks: usize },
    #[error("cannot start rank {rank} ({}): {source}", program.display())]
    Spawn { rank: usize, program: PathBuf, source: io::Error },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl RunError {
    /// The launcher's exit code: as a shell says it when the program could not be executed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            Self::NoExpand => 127,
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 126,
            _ => 1,
        }
    }
}
