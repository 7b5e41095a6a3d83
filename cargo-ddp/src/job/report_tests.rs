//! Jobs and what has to be said about them.

use super::super::supervise::Request;
use super::*;

fn exit(rank: usize, ended: Ended, unix_ms: u64) -> Exit {
    Exit { rank, ended, unix_ms, asked: false }
}

fn stopped(rank: usize, signal: i32) -> Exit {
    Exit { rank, ended: Ended::Signal(signal), unix_ms: 99, asked: true }
}

fn record(rank: usize, kind: FailureKind, unix_ms: u64) -> FailureRecord {
    FailureRecord {
        rank,
        kind,
        operation: "train".to_owned(),
        message: format!("text of {rank}"),
        place: Some("src/main.rs:7".to_owned()),
        unix_ms,
    }
}

fn job(exits: &[Exit]) -> Outcome {
    Outcome { exits: exits.to_vec(), ..Outcome::default() }
}

fn judged(outcome: &Outcome, records: &[FailureRecord]) -> (Option<usize>, u8) {
    let verdict = verdict(outcome, records);
    (verdict.cause.map(|cause| cause.rank), verdict.exit_code)
}

#[test]
fn a_job_that_ended_well_has_no_report() {
    let outcome = job(&[exit(0, Ended::Code(0), 1), exit(1, Ended::Code(0), 1)]);
    assert_eq!(judged(&outcome, &[]), (None, 0));
}

#[test]
fn a_killed_rank_comes_before_the_peers_that_noticed() {
    let peer = i32::from(ddp_env::exit::PEER_FAILED);
    // The peer's record carries an earlier time and it was reaped first: still not the cause.
    let outcome = job(&[exit(0, Ended::Code(peer), 4), exit(1, Ended::Signal(libc::SIGKILL), 5)]);
    assert_eq!(judged(&outcome, &[record(0, FailureKind::Peer, 1)]), (Some(1), 137));
    assert_eq!(judged(&outcome, &[]), (Some(1), 137), "the exit code alone says it too");
}

#[test]
fn the_earliest_error_is_the_cause_whatever_ended_first() {
    let outcome = job(&[exit(0, Ended::Code(3), 20), exit(1, Ended::Code(101), 21)]);
    let records = [record(0, FailureKind::Error, 12), record(1, FailureKind::Panic, 11)];
    assert_eq!(judged(&outcome, &records), (Some(1), 101));
}

#[test]
fn a_rank_that_the_launcher_stopped_is_no_cause() {
    let outcome = job(&[exit(1, Ended::Code(1), 100), stopped(0, libc::SIGTERM)]);
    assert_eq!(judged(&outcome, &[]), (Some(1), 1));
}

#[test]
fn peers_alone_are_reported_for_want_of_better() {
    let outcome = job(&[exit(0, Ended::Code(81), 2), exit(1, Ended::Code(81), 1)]);
    assert_eq!(judged(&outcome, &[]), (Some(1), 81));
}

#[test]
fn a_request_to_stop_is_no_failure() {
    let mut outcome = job(&[stopped(0, libc::SIGTERM), stopped(1, libc::SIGKILL)]);
    outcome.request = Some(Request::Stop(libc::SIGTERM));
    assert_eq!(judged(&outcome, &[]), (None, 143));
    outcome.exits = vec![exit(0, Ended::Code(0), 1), exit(1, Ended::Code(0), 1)];
    assert_eq!(judged(&outcome, &[]), (None, 0), "all saved their work and left");
    outcome.exits[1].ended = Ended::Code(4);
    assert_eq!(judged(&outcome, &[record(1, FailureKind::Error, 1)]), (Some(1), 143));
}

#[test]
fn a_rank_that_cannot_be_killed_is_no_success() {
    let outcome = Outcome { stuck: vec![0, 2, 5], ..job(&[exit(1, Ended::Code(0), 1)]) };
    assert_eq!(judged(&outcome, &[]).1, 137);
    assert_eq!(numbers(&outcome.stuck), "0, 2 and 5");
}

#[test]
fn ends_are_told_in_words() {
    assert_eq!(described_end(Ended::Code(7)), "exit code 7");
    assert_eq!(described_end(Ended::Code(101)), "exit code 101 (a Rust panic)");
    assert!(described_end(Ended::Signal(9)).starts_with("killed by SIGKILL (often"));
    assert_eq!(described_end(Ended::Signal(libc::SIGUSR1)), "killed by SIGUSR1");
    assert_eq!(signal_name(64), "signal 64");
}

/// The report of a job of two ranks on one host.
fn text(outcome: &Outcome, records: &[FailureRecord], lines: &[&str]) -> String {
    let lines_of = |_rank: usize| lines.iter().map(|line| (*line).to_owned()).collect();
    let plan = super::super::plan::tests::two_ranks();
    verdict(outcome, records).text(&plan, outcome, &lines_of, false).unwrap_or_default()
}

#[test]
fn memory_is_named_only_where_it_can_be_the_cause() {
    let mut outcome = job(&[exit(1, Ended::Signal(libc::SIGKILL), 1)]);
    let memory = "killed a process of this control group for memory";
    assert!(!text(&outcome, &[], &[]).contains(memory));
    outcome.out_of_memory = true;
    assert!(text(&outcome, &[], &[]).contains(memory));
    outcome.exits[0].ended = Ended::Code(1);
    assert!(!text(&outcome, &[], &[]).contains(memory));
}

#[test]
fn a_report_has_the_words_of_the_rank_or_else_its_last_lines() {
    let outcome = job(&[exit(1, Ended::Code(1), 1), exit(0, Ended::Code(81), 2)]);
    let expected = "error: rank 1 of 2 failed first: exit code 1\n  \
         the last lines of its stderr:\n  | so it goes\n  \
         rank 0: exit code 81 (ended because another rank had failed)";
    assert_eq!(text(&outcome, &[], &["so it goes"]), expected);
    let record = record(1, FailureKind::Error, 1);
    let expected = "error: rank 1 of 2 failed first: exit code 1\n  | text of 1\n  \
         during: train\n  at: src/main.rs:7\n  \
         rank 0: exit code 81 (ended because another rank had failed)";
    assert_eq!(text(&outcome, &[record], &["so it goes"]), expected);
}

#[test]
fn a_record_without_words_borrows_those_of_stderr() {
    let outcome = job(&[exit(1, Ended::Code(1), 1)]);
    let record = FailureRecord { message: String::new(), ..record(1, FailureKind::Error, 1) };
    let expected = "error: rank 1 of 2 failed: exit code 1\n  the last lines of its stderr:\n  \
         | Error: no column\n  during: train\n  at: src/main.rs:7";
    assert_eq!(text(&outcome, &[record], &["Error: no column"]), expected);
}
