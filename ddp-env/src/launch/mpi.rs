//! `mpirun` of Open MPI, MPICH and Intel MPI.

use super::error::EnvError;
use super::vars::Vars;
use super::{DEFAULT_PORT, LOOPBACK, Launch, LauncherKind, Rendezvous, StoreHost};
use crate::names;
use crate::topology::Topology;

/// The variables of one family of `mpirun`.
struct Family {
    launcher: LauncherKind,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// Open MPI. Its `OMPI_COMM_WORLD_NODE_RANK` is no rank of a node but a second local rank (over all
/// jobs of the node), so it is not read.
const OPEN_MPI: Family = Family {
    launcher: LauncherKind::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

/// MPICH and Intel MPI (the hydra process manager).
const MPICH: Family = Family {
    launcher: LauncherKind::Mpich,
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};

const COMPLETE: &str = "mpirun sets them together; start the program with mpirun, or unset both";

/// `None` when no `mpirun` started the process.
pub(super) fn read(vars: &Vars<'_>) -> Result<Option<Launch>, EnvError> {
    let family = if vars.has(OPEN_MPI.rank) {
        &OPEN_MPI
    } else if vars.has(MPICH.rank) && (vars.has(MPICH.local_rank) || !vars.has("SLURM_PROCID")) {
        // srun can set PMI_RANK too, but not the local ranks: that is SLURM's to read.
        &MPICH
    } else {
        return Ok(None);
    };
    read_family(vars, family).map(Some)
}

fn read_family(vars: &Vars<'_>, family: &Family) -> Result<Launch, EnvError> {
    let needed = |name| vars.required(name, family.rank, COMPLETE);
    let (rank, world_size) = (needed(family.rank)?, needed(family.size)?);
    let (local_rank, local_world_size) = if world_size == 1 {
        (0, 1)
    } else {
        (needed(family.local_rank)?, needed(family.local_size)?)
    };
    agree_on_world_size(vars, family.size, world_size)?;
    let node_rank = rank / local_world_size.max(1);
    let topology = Topology::new(rank, world_size, local_rank, local_world_size, node_rank)
        .map_err(|source| EnvError::Topology { launcher: family.launcher.name(), source })?;
    Ok(Launch {
        rendezvous: rendezvous(vars, &topology, family)?,
        topology,
        launcher: family.launcher,
        report_dir: None,
        restart_count: 0,
    })
}

/// On one host the processes meet on loopback; over several the user has to say where.
fn rendezvous(
    vars: &Vars<'_>,
    topology: &Topology,
    family: &Family,
) -> Result<Rendezvous, EnvError> {
    let one_host = topology.local_world_size == topology.world_size;
    let missing = |missing| EnvError::Missing {
        missing,
        present: family.rank,
        cure: "mpirun does not say where rank 0 runs: pass MASTER_ADDR (host of rank 0) and \
               MASTER_PORT (a free port there) to all processes, with -x (Open MPI) or -genv \
               (MPICH)",
    };
    let master_addr = match vars.text(names::MASTER_ADDR) {
        Some(addr) => addr,
        None if one_host => LOOPBACK.to_owned(),
        None => return Err(missing(names::MASTER_ADDR)),
    };
    let master_port = match vars.port(names::MASTER_PORT)? {
        Some(port) => port,
        None if one_host => job_port(vars),
        None => return Err(missing(names::MASTER_PORT)),
    };
    Ok(Rendezvous { master_addr, master_port, store: StoreHost::Rank0 { listen_fd: None } })
}

/// A port that all processes of a job derive alike and two jobs hardly ever share, from the name
/// that the process manager gave the job; PyTorch's usual one when it gave none.
fn job_port(vars: &Vars<'_>) -> u16 {
    let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDRA_JOBID"];
    match vars.first(&job).and_then(|name| vars.text(name)) {
        None => DEFAULT_PORT,
        Some(job) => {
            // FNV-1a: the same on every process, unlike the standard library's hashers.
            let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            // 15000 to 24999: below the ports that the kernel hands out by itself.
            15_000 + u16::try_from(hash % 10_000).unwrap_or(0)
        }
    }
}

/// A `WORLD_SIZE` exported beside the launcher's own count has to say the same.
pub(super) fn agree_on_world_size(
    vars: &Vars<'_>,
    name: &'static str,
    world_size: usize,
) -> Result<(), EnvError> {
    match vars.number(names::WORLD_SIZE)? {
        Some(exported) if exported != world_size => Err(EnvError::Contradiction {
            name: names::WORLD_SIZE,
            value: exported.to_string(),
            other: name,
            other_value: world_size.to_string(),
            cure: "unset WORLD_SIZE, or export the number of processes that really start",
        }),
        _ => Ok(()),
    }
}
