//! One job: the ranks of this host from start to end.
//!
//! * `plan`: what each rank is told (pure);
//! * `store`: the listening socket that rank 0 inherits;
//! * `spawn`: starting a rank so that it cannot outlive the launcher;
//! * `supervise`: when to stop the others, when to kill (pure); `watch`: exits, signals and the
//!   clock around it;
//! * `keeper`: a helper process that cleans up when the launcher itself is killed, with `sweep`;
//! * `report`: who failed first, and how to say it (pure).

mod keeper;
mod plan;
mod report;
mod spawn;
mod store;
mod supervise;
mod sweep;
mod watch;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use keeper::{ARGUMENT as KEEPER_ARGUMENT, keep};

use crate::cli::{Count, RunArgs};
use crate::error::RunError;
use crate::host::{cores, gpus, oom::OomWatch};
use crate::output::{Output, RankOutput, Terminals, routes};
use crate::program::{self, Program};
use crate::style;

/// How long output that leftover processes hold open is waited for.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Builds the program, runs it on all ranks, and returns the launcher's exit code.
pub(crate) fn run(args: &RunArgs) -> Result<u8, RunError> {
    let ranks = rank_count(args)?;
    let hosts = plan::Hosts::new(&args.hosts, ranks)?;
    let program = match &args.exec {
        Some(path) => Program { path: path.clone(), ..Program::default() },
        None => program::build(&args.cargo)?,
    };
    let listener = store::listen(&hosts)?;
    let report_dir = tempfile::Builder::new()
        .prefix("cargo-ddp-")
        .tempdir()
        .map_err(|source| RunError::System { action: "create a folder for reports", source })?;
    let grace = args.grace(std::env::var(ddp_env::names::DDP_GRACE).ok())?;
    let plan = plan::Plan {
        grace,
        port: listener.as_ref().map_or(hosts.port(), |(_, port)| *port),
        hosts,
        report_dir: report_dir.path().to_owned(),
        cores: cores::usable().count,
        share_gpus: args.share_gpus,
        program,
        args: args.args.clone(),
    };
    if !args.cargo.quiet && args.exec.is_none() {
        let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        style::status("Running", &format!("{ranks} of `{}`", shown(&plan.program.path)));
    }
    run_ranks(args, &plan, listener)
}

/// Starts all ranks, watches them to their end, and reports.
fn run_ranks(
    args: &RunArgs,
    plan: &plan::Plan,
    listener: Option<store::Listener>,
) -> Result<u8, RunError> {
    let outputs = rank_outputs(args, plan)?;
    let signals = watch::Signals::listen()?;
    let mut keeper = keeper::Keeper::start(&plan.report_dir)?;
    let memory = OomWatch::start();
    let mut output = Output::new();
    let mut children = spawn::Children::default();
    let started = start(plan, listener, &outputs, &mut output, &mut children, &mut keeper);
    if let Err(error) = started {
        children.kill_groups();
        children.reap();
        sweep::sweep(&plan.report_dir);
        keeper.dismiss();
        return Err(error);
    }
    let mut outcome = watch::watch(signals, &children, supervise::Limits::with_grace(plan.grace))?;
    outcome.out_of_memory = memory.has_killed();
    children.kill_groups();
    sweep::sweep(&plan.report_dir);
    children.reap();
    keeper.dismiss();
    output.finish(LAST_OUTPUT);
    let tails: Vec<_> = outputs.iter().map(|output| output.tail.clone()).collect();
    Ok(report::conclude(plan, &outcome, &tails))
}

fn start(
    plan: &plan::Plan,
    listener: Option<store::Listener>,
    outputs: &[RankOutput],
    output: &mut Output,
    children: &mut spawn::Children,
    keeper: &mut keeper::Keeper,
) -> Result<(), RunError> {
    let mut listener = listener.map(|(socket, _)| socket);
    for (local_rank, rank_output) in outputs.iter().enumerate() {
        // The launcher's copy is closed once rank 0 has it: were rank 0 to die, the others must
        // find nobody listening.
        let socket = listener.take();
        let mut child = spawn::rank(plan, local_rank, rank_output.stdio(), socket.as_ref())?;
        keeper.watch(child.id());
        let attached = output.attach(&mut child, rank_output);
        children.push(plan.hosts.rank(local_rank), child);
        attached.map_err(|source| RunError::System { action: "start a thread", source })?;
    }
    Ok(())
}

fn rank_outputs(args: &RunArgs, plan: &plan::Plan) -> Result<Vec<RankOutput>, RunError> {
    let terminals = Terminals { stderr: std::io::stderr().is_terminal() };
    let log_dir = args.output.log_dir.as_deref();
    (0..plan.hosts.ranks)
        .map(|local_rank| {
            let rank = plan.hosts.rank(local_rank);
            let ways = routes(args.output.output, rank, terminals, log_dir.is_some());
            RankOutput::new(rank, ways, log_dir)
        })
        .collect()
}

/// The number of ranks on this host, if its GPUs suffice for it.
fn rank_count(args: &RunArgs) -> Result<usize, RunError> {
    let gpus = gpus::visible();
    let ranks = match args.ranks {
        Count::Of(ranks) => ranks.get(),
        Count::Auto if gpus > 0 => gpus,
        Count::Auto => cores::usable().count,
    };
    let backend = std::env::var(ddp_env::names::DDP_BACKEND).unwrap_or_default();
    if too_few_gpus(ranks, gpus, &backend) && !args.share_gpus {
        return Err(RunError::TooFewGpus { ranks, gpus });
    }
    Ok(ranks)
}

/// Whether some rank would find no GPU of its own. A host without any, or a job whose transport is
/// one of the CPU's, needs none.
fn too_few_gpus(ranks: usize, gpus: usize, backend: &str) -> bool {
    let on_cpu = ["gloo", "shm"].contains(&backend);
    gpus > 0 && ranks > gpus && !on_cpu
}

/// The path as cargo shows it: relative where it lies below the current folder.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// Milliseconds since the Unix epoch, as failure records count them.
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// Calls `done` until it says so, at most for `limit`.
fn poll(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p35_more_ranks_than_gpus_are_refused_with_both_numbers() {
        assert!(too_few_gpus(8, 4, ""));
        assert!(too_few_gpus(8, 4, "nccl"));
        assert!(!too_few_gpus(4, 4, ""));
        assert!(!too_few_gpus(8, 0, ""), "a host without GPUs trains on the CPU");
        assert!(!too_few_gpus(8, 4, "gloo"));
        let text = RunError::TooFewGpus { ranks: 8, gpus: 4 }.to_string();
        assert!(text.starts_with("8 ranks asked for, but 4 GPUs are visible"), "{text}");
    }

    #[test]
    fn polling_ends_with_success_or_the_limit() {
        assert!(poll(Duration::ZERO, || true));
        assert!(!poll(Duration::from_millis(5), || false));
    }
}
