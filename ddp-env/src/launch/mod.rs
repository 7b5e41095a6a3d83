//! How this process was started, as the environment tells it.
//!
//! One file a launcher family: [`contract`] reads torchrun's variables, [`slurm`] those of `srun`,
//! [`mpi`] those of `mpirun`. The first that recognises the environment decides:
//!
//! 1. `RANK` is set: torchrun, `cargo ddp`, or a script that sets the same variables;
//! 2. `OMPI_COMM_WORLD_RANK`, or `PMI_RANK` with `MPI_LOCALRANKID`: `mpirun`. Before SLURM, since
//!    inside an allocation `mpirun` starts its daemons by `srun`, whose variables ranks inherit;
//! 3. `SLURM_PROCID` inside a job step: `srun`;
//! 4. nothing of that: no launcher, one process. Half of it is an error.

mod contract;
mod error;
mod mpi;
mod slurm;
mod vars;

use std::path::PathBuf;

pub use error::EnvError;
use vars::Vars;

use crate::names;
use crate::topology::Topology;

/// Everything a process learns from its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The place of this process in the job.
    pub topology: Topology,
    /// Where the processes meet. Not used by a job of one process.
    pub rendezvous: Rendezvous,
    /// Who started the process.
    pub launcher: LauncherKind,
    /// Where a failing rank leaves its record, if the launcher reads it.
    pub report_dir: Option<PathBuf>,
    /// How often the launcher has started the job again: keys in a store that outlives an attempt
    /// (torchrun's agent) need it in front of them.
    pub restart_count: usize,
}

/// Where the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Host name or address of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// Who serves the store.
    pub store: StoreHost,
}

/// Who serves the store of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The agent of torchrun serves it; every rank is a client.
    Agent,
    /// Rank 0 serves it, and the others are its clients.
    Rank0 {
        /// A listening socket that rank 0 inherited for it, already bound to the port. `None` on
        /// the other ranks, and when rank 0 has to bind the port itself.
        listen_fd: Option<i32>,
    },
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LauncherKind {
    /// `cargo ddp run`.
    CargoDdp,
    /// `torchrun`.
    Torchrun,
    /// `srun`, in a SLURM job step.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH or Intel MPI.
    Mpich,
    /// Something that sets `RANK` and the rest by itself: a script, a cluster operator.
    Manual,
}

impl LauncherKind {
    /// The name as a user knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CargoDdp => "cargo ddp",
            Self::Torchrun => "torchrun",
            Self::Slurm => "srun",
            Self::OpenMpi => "mpirun (Open MPI)",
            Self::Mpich => "mpirun (MPICH)",
            Self::Manual => "the environment",
        }
    }
}

impl Launch {
    /// Reads the environment of this process. `None`: no launcher started it.
    ///
    /// # Errors
    ///
    /// [`EnvError`] when the environment is incomplete or contradicts itself.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Self::from_lookup(&|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// The same for any source of variables. An empty variable counts as one that is not set.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, EnvError> {
        let vars = Vars::new(lookup);
        if vars.has(names::RANK) {
            return contract::read(&vars).map(Some);
        }
        if let Some(launch) = mpi::read(&vars)? {
            return Ok(Some(launch));
        }
        if let Some(launch) = slurm::read(&vars)? {
            return Ok(Some(launch));
        }
        contract::refuse_without_rank(&vars)?;
        Ok(None)
    }
}

/// The port that PyTorch's tools use when none is named.
const DEFAULT_PORT: u16 = 29500;

/// The address for jobs on one host.
const LOOPBACK: &str = "127.0.0.1";

#[cfg(test)]
mod tests;
