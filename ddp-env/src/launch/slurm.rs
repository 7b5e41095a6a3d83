//! `srun`: the tasks of a SLURM job step.

use super::error::EnvError;
use super::mpi::agree_on_world_size;
use super::vars::Vars;
use super::{LOOPBACK, Launch, LauncherKind, Rendezvous, StoreHost};
use crate::names;
use crate::topology::Topology;

/// Step numbers from here on are SLURM's own: the batch script, the interactive shell of `salloc`,
/// the external step. What runs in them was not started as a task.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

const STEP_ID: &str = "SLURM_STEP_ID";
const PROCID: &str = "SLURM_PROCID";
const LOCALID: &str = "SLURM_LOCALID";
const NODEID: &str = "SLURM_NODEID";
const PTY: &str = "SLURM_PTY_PORT";
/// The step's own figure first: the job may be larger than this step of it.
const TASKS: [&str; 3] = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
const TASKS_PER_NODE: [&str; 3] =
    ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];
const NODES: [&str; 3] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"];
const NODE_LIST: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
const JOB_ID: [&str; 2] = ["SLURM_JOB_ID", "SLURM_JOBID"];

const BY_SRUN: &str = "srun sets it for every task; start the program with srun";

/// `None` when the process is no task of a step with several tasks: a shell inside an allocation,
/// a batch script, or a step of one.
pub(super) fn read(vars: &Vars<'_>) -> Result<Option<Launch>, EnvError> {
    if !in_step(vars)? {
        return Ok(None);
    }
    let rank = vars.required(PROCID, STEP_ID, BY_SRUN)?;
    let tasks_name = vars.first(&TASKS).unwrap_or(TASKS[1]);
    let world_size = vars.required(tasks_name, PROCID, BY_SRUN)?;
    if world_size == 1 {
        return Ok(None);
    }
    if vars.has(PTY) {
        return Err(EnvError::InteractiveStep { rank, world_size });
    }
    agree_on_world_size(vars, tasks_name, world_size)?;
    let topology = topology(vars, rank, world_size)?;
    let rendezvous = rendezvous(vars, &topology)?;
    let launcher = LauncherKind::Slurm;
    Ok(Some(Launch { topology, rendezvous, launcher, report_dir: None, restart_count: 0 }))
}

fn in_step(vars: &Vars<'_>) -> Result<bool, EnvError> {
    let step =
        vars.parse::<u32>(STEP_ID, "the number of a step", "SLURM sets it; leave it alone")?;
    Ok(step.is_some_and(|step| step < FIRST_SPECIAL_STEP) && vars.has(PROCID))
}

fn topology(vars: &Vars<'_>, rank: usize, world_size: usize) -> Result<Topology, EnvError> {
    let local_rank = vars.required(LOCALID, PROCID, BY_SRUN)?;
    let node_rank = vars.required(NODEID, PROCID, BY_SRUN)?;
    let node_count = match vars.first(&NODES) {
        Some(name) => vars.number(name)?,
        None => None,
    };
    let local_world_size = match local_tasks(vars, node_rank)? {
        Some(tasks) => tasks,
        None if node_count == Some(1) => world_size,
        None => {
            return Err(EnvError::Missing {
                missing: TASKS_PER_NODE[0],
                present: PROCID,
                cure: "start the step with --ntasks-per-node",
            });
        }
    };
    let wrong = |source| EnvError::Topology { launcher: LauncherKind::Slurm.name(), source };
    let topology =
        Topology::new(rank, world_size, local_rank, local_world_size, node_rank).map_err(wrong)?;
    match node_count {
        Some(node_count) => topology.with_node_count(node_count).map_err(wrong),
        None => Ok(topology),
    }
}

/// The number of tasks on host `node_rank`, if SLURM says it.
fn local_tasks(vars: &Vars<'_>, node_rank: usize) -> Result<Option<usize>, EnvError> {
    let Some(name) = vars.first(&TASKS_PER_NODE) else { return Ok(None) };
    let Some(value) = vars.text(name) else { return Ok(None) };
    match nth_task_count(&value, node_rank) {
        Some(tasks) => Ok(Some(tasks)),
        None => Err(EnvError::Invalid {
            name,
            value,
            expected: "a list like 4(x2),3 that covers this node",
            cure: "start the step with --ntasks-per-node",
        }),
    }
}

/// Entry `node` of a list such as `2(x3),1`: two tasks on each of three nodes, one on the fourth.
fn nth_task_count(list: &str, node: usize) -> Option<usize> {
    let mut first_of_group = 0_usize;
    let groups = list.split(',').count();
    for group in list.split(',') {
        let (tasks, repeats) = match group.split_once("(x") {
            Some((tasks, repeats)) => (tasks, repeats.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (group, 1),
        };
        let tasks = tasks.trim().parse().ok()?;
        // SLURM_NTASKS_PER_NODE is a single number that holds for every node.
        let for_all = groups == 1 && !group.contains('(');
        if for_all || node < first_of_group.saturating_add(repeats) {
            return Some(tasks);
        }
        first_of_group = first_of_group.saturating_add(repeats);
    }
    None
}

/// `MASTER_ADDR` and `MASTER_PORT` where they are set, else PyTorch Lightning's rule: the first
/// host of the node list, and the last four digits of the job's number plus 15000. A step on one
/// host meets on loopback.
fn rendezvous(vars: &Vars<'_>, topology: &Topology) -> Result<Rendezvous, EnvError> {
    let missing = |missing, cure| EnvError::Missing { missing, present: PROCID, cure };
    let master_addr = match vars.text(names::MASTER_ADDR) {
        Some(addr) => addr,
        None if topology.local_world_size == topology.world_size => LOOPBACK.to_owned(),
        None => first_node(vars)?
            .ok_or(missing(names::MASTER_ADDR, "export the host name of the step's first node"))?,
    };
    let master_port = match vars.port(names::MASTER_PORT)? {
        Some(port) => port,
        None => job_port(vars)
            .ok_or(missing(names::MASTER_PORT, "export a port that is free on the first node"))?,
    };
    Ok(Rendezvous { master_addr, master_port, store: StoreHost::Rank0 { listen_fd: None } })
}

fn first_node(vars: &Vars<'_>) -> Result<Option<String>, EnvError> {
    let Some(name) = vars.first(&NODE_LIST) else { return Ok(None) };
    let Some(value) = vars.text(name) else { return Ok(None) };
    match first_host(&value) {
        Some(host) => Ok(Some(host)),
        None => Err(EnvError::Invalid {
            name,
            value,
            expected: "a node list like gpu[03-05,9]",
            cure: "export MASTER_ADDR, the host name of the step's first node",
        }),
    }
}

/// The first host of a node list: `gpu03` of `gpu[03-05,9],login`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(range) = rest[end..].strip_prefix('[') else { break };
        let (range, after) = range.split_once(']')?;
        let first = range.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    (!host.is_empty()).then_some(host)
}

fn job_port(vars: &Vars<'_>) -> Option<u16> {
    let job = vars.text(vars.first(&JOB_ID)?)?;
    if !job.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = &job[job.len().saturating_sub(4)..];
    digits.parse::<u16>().ok().map(|last_four| last_four + 15_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn task_lists_are_read_by_node() {
        let cases = [
            ("2(x3),1", 0, Some(2)),
            ("2(x3),1", 2, Some(2)),
            ("2(x3),1", 3, Some(1)),
            ("2(x3),1", 4, None),
            ("4", 7, Some(4)),
            ("3,2", 1, Some(2)),
            ("3(x", 0, None),
            ("", 0, None),
            ("x", 0, None),
        ];
        for (list, node, expected) in cases {
            assert_eq!(nth_task_count(list, node), expected, "{list} node {node}");
        }
    }

    #[test]
    fn the_first_host_of_a_list() {
        let cases = [
            ("node7", Some("node7")),
            ("a,b", Some("a")),
            ("gpu[03-05,9],login", Some("gpu03")),
            ("rack[2-3]n[10,11].cluster,x", Some("rack2n10.cluster")),
            ("gpu[", None),
            ("gpu[]", None),
            (",b", None),
        ];
        for (list, expected) in cases {
            assert_eq!(first_host(list).as_deref(), expected, "{list}");
        }
    }

    proptest! {
        #[test]
        fn no_list_makes_the_readers_panic(list in "\\PC{0,20}", node in 0_usize..9) {
            let _ = nth_task_count(&list, node);
            let _ = first_host(&list);
        }

        #[test]
        fn counts_written_out_come_back(counts in prop::collection::vec(1_usize..9, 2..9)) {
            let list = counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            for (node, count) in counts.iter().enumerate() {
                prop_assert_eq!(nth_task_count(&list, node), Some(*count));
            }
        }
    }
}
