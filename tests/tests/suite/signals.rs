//! Signals of a scheduler, to one rank or to the launcher.
#![allow(clippy::unwrap_used, reason = "helpers of tests end a test by a panic, as tests do")]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use ddp_tests::{Job, Outcome};

use crate::worker;

fn job(case: &str, folder: &Path, signal: &str, ranks: usize) -> Job {
    worker("signals").arg(case).arg(folder).arg(signal).ranks(ranks)
}

/// The step after which all ranks stopped.
#[track_caller]
fn step(outcome: &Outcome) -> u64 {
    let of = |rank: usize| {
        let line = outcome.ranks[rank].stdout.strip_prefix("stopped after step ");
        line.unwrap_or_else(|| panic!("{}", outcome.tails())).trim().parse().unwrap()
    };
    let steps: Vec<u64> = (0..outcome.ranks.len()).map(of).collect();
    assert!(steps.iter().all(|step| *step == steps[0]), "{}", outcome.tails());
    steps[0]
}

fn checkpoints(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn p24_a_signal_to_one_rank_stops_all_after_the_same_step_and_the_next_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let first = step(&job("rank", folder.path(), "TERM", 3).arg("1").run().success());
    assert!(first >= 3 && checkpoints(folder.path()) == 1);
    let second = step(&job("rank", folder.path(), "USR1", 2).arg("0").run().success());
    assert!(second >= first + 3, "{second} is not after {first}");
}

#[test]
fn p24_a_signal_to_the_launcher_reaches_the_ranks() {
    for signal in ["TERM", "USR1"] {
        let folder = tempfile::tempdir().unwrap();
        let launcher = Job::new(env!("CARGO_BIN_EXE_ddp-launch"), "run").arg("-n").arg("2");
        let program = launcher.arg("--exec").arg(env!("CARGO_BIN_EXE_ddp-worker")).arg("--");
        let job = program.arg("signals").arg("launcher").arg(folder.path()).arg(signal).arg("1");
        let outcome = job.run().success();
        let said = outcome.ranks[0].stdout.matches("stopped after step").count();
        assert_eq!((said, checkpoints(folder.path())), (2, 1), "{}", outcome.tails());
    }
}

#[test]
fn a_single_process_is_ended_by_a_signal_unless_it_asks_not_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = job("rank", folder.path(), "TERM", 0).arg("0").run();
    let status = outcome.ranks[0].status.unwrap();
    assert_eq!(status.signal(), Some(15), "{}", outcome.tails());
    let outcome = job("asked", folder.path(), "TERM", 0).arg("0").run().success();
    assert!(step(&outcome) >= 3);
}

#[test]
fn after_the_scope_a_signal_ends_the_process_again() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = job("after", folder.path(), "TERM", 2).run();
    for rank in &outcome.ranks {
        assert_eq!(rank.status.unwrap().signal(), Some(15), "{}", outcome.tails());
    }
}
