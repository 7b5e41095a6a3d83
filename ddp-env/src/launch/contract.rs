//! torchrun's variables, as torchrun, `cargo ddp` and many cluster operators set them.

use std::path::PathBuf;

use super::error::EnvError;
use super::vars::Vars;
use super::{DEFAULT_PORT, LOOPBACK, Launch, LauncherKind, Rendezvous, StoreHost};
use crate::names;
use crate::topology::Topology;

const SET_ALL: &str = "a launcher sets RANK, WORLD_SIZE, LOCAL_RANK, \
     LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT together; set it too, or unset them all for a \
     single process";

/// Reads the variables; `RANK` is known to be set.
pub(super) fn read(vars: &Vars<'_>) -> Result<Launch, EnvError> {
    let rank = vars.required(names::RANK, names::RANK, SET_ALL)?;
    let world_size = vars.required(names::WORLD_SIZE, names::RANK, SET_ALL)?;
    let launcher = launcher(vars);
    let topology = topology(vars, rank, world_size, launcher)?;
    Ok(Launch {
        topology,
        rendezvous: rendezvous(vars, &topology)?,
        launcher,
        report_dir: vars.text(names::DDP_REPORT_DIR).map(PathBuf::from),
        restart_count: vars.number(names::TORCHELASTIC_RESTART_COUNT)?.unwrap_or(0),
    })
}

/// Without `RANK` and without any other launcher, its companions are a half-set environment.
///
/// `MASTER_ADDR` and `MASTER_PORT` alone are not: clusters export them for a whole job, also where
/// a single process runs.
pub(super) fn refuse_without_rank(vars: &Vars<'_>) -> Result<(), EnvError> {
    match vars.first(&[names::WORLD_SIZE, names::LOCAL_RANK, names::LOCAL_WORLD_SIZE]) {
        None => Ok(()),
        Some(present) => Err(EnvError::Missing { missing: names::RANK, present, cure: SET_ALL }),
    }
}

fn launcher(vars: &Vars<'_>) -> LauncherKind {
    if vars.text(names::DDP_LAUNCHER).as_deref() == Some(names::CARGO_DDP) {
        LauncherKind::CargoDdp
    } else if vars.has(names::TORCHELASTIC_RUN_ID) {
        LauncherKind::Torchrun
    } else {
        LauncherKind::Manual
    }
}

fn topology(
    vars: &Vars<'_>,
    rank: usize,
    world_size: usize,
    launcher: LauncherKind,
) -> Result<Topology, EnvError> {
    let (local_rank, local_world_size) = local(vars, rank, world_size)?;
    let node_rank = match vars.number(names::GROUP_RANK)? {
        Some(node) => node,
        None => vars.number(names::NODE_RANK)?.unwrap_or(rank / local_world_size.max(1)),
    };
    let wrong = |source| EnvError::Topology { launcher: launcher.name(), source };
    let topology =
        Topology::new(rank, world_size, local_rank, local_world_size, node_rank).map_err(wrong)?;
    match vars.number(names::GROUP_WORLD_SIZE)? {
        Some(node_count) => topology.with_node_count(node_count).map_err(wrong),
        None => Ok(topology),
    }
}

/// Position on this host and number of processes on it.
///
/// Where they are not set they are taken from the rest only if that leaves no doubt: one process,
/// or a job that meets on loopback and so is on one host. A guess could put two ranks on one GPU.
fn local(vars: &Vars<'_>, rank: usize, world_size: usize) -> Result<(usize, usize), EnvError> {
    let loopback = vars.text(names::MASTER_ADDR).is_some_and(|addr| is_loopback(&addr));
    let one_host = world_size <= 1 || loopback;
    let local_rank = match vars.number(names::LOCAL_RANK)? {
        Some(local_rank) => local_rank,
        None if one_host => rank,
        None => {
            return Err(EnvError::Missing {
                missing: names::LOCAL_RANK,
                present: names::RANK,
                cure: "set it to the position of this process among those of its host \
                       (0 where a host runs one)",
            });
        }
    };
    let local_world_size = match vars.number(names::LOCAL_WORLD_SIZE)? {
        Some(local_world_size) => local_world_size,
        None if one_host => world_size,
        None => {
            return Err(EnvError::Missing {
                missing: names::LOCAL_WORLD_SIZE,
                present: names::RANK,
                cure: "set it to the number of processes on this host (1 where it runs one)",
            });
        }
    };
    Ok((local_rank, local_world_size))
}

fn rendezvous(vars: &Vars<'_>, topology: &Topology) -> Result<Rendezvous, EnvError> {
    let alone = topology.world_size == 1;
    let missing = |missing| EnvError::Missing { missing, present: names::RANK, cure: SET_ALL };
    let master_addr = match vars.text(names::MASTER_ADDR) {
        Some(addr) => addr,
        None if alone => LOOPBACK.to_owned(),
        None => return Err(missing(names::MASTER_ADDR)),
    };
    let master_port = match vars.port(names::MASTER_PORT)? {
        Some(port) => port,
        None if alone => DEFAULT_PORT,
        None => return Err(missing(names::MASTER_PORT)),
    };
    Ok(Rendezvous { master_addr, master_port, store: store(vars, topology)? })
}

fn store(vars: &Vars<'_>, topology: &Topology) -> Result<StoreHost, EnvError> {
    // PyTorch compares with exactly this word, so anything else leaves the store to rank 0.
    if vars.text(names::TORCHELASTIC_USE_AGENT_STORE).as_deref() == Some("True") {
        return Ok(StoreHost::Agent);
    }
    let listen_fd = vars.parse::<u16>(
        names::DDP_STORE_FD,
        "the number of a file descriptor",
        "unset it; only `cargo ddp` sets it, for rank 0",
    )?;
    let listen_fd = listen_fd.filter(|_| topology.is_main()).map(i32::from);
    Ok(StoreHost::Rank0 { listen_fd })
}

/// Whether `addr` names this host itself.
fn is_loopback(addr: &str) -> bool {
    let addr = addr.trim_start_matches('[').trim_end_matches(']');
    addr == "localhost"
        || addr.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
