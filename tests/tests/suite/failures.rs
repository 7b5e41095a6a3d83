//! A rank that ends in the middle: the launcher ends soon, names it, and leaves no process behind.
use std::time::Duration;

use ddp_tests::{Job, Outcome};

/// The worker's case under `cargo ddp run`, with a mark by which its processes are found again.
fn launch(how: &str, who: usize, mark: &str) -> Outcome {
    Job::new(env!("CARGO_BIN_EXE_ddp-launch"), "run")
        .arg("-n")
        .arg("3")
        .arg("--exec")
        .arg(env!("CARGO_BIN_EXE_ddp-worker"))
        .arg("--")
        .arg("failures")
        .arg(how)
        .arg(who.to_string())
        .env("DDP_TEST_MARK", mark)
        .limit(Duration::from_secs(60))
        .run()
}

/// Processes that carry the mark in their environment.
pub(crate) fn left_over(mark: &str) -> Vec<String> {
    let wanted = format!("DDP_TEST_MARK={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let environment = std::fs::read(entry.path().join("environ")).ok()?;
            let ours = environment.split(|byte| *byte == 0).any(|line| line == wanted.as_bytes());
            ours.then(|| entry.file_name().to_string_lossy().into_owned())
        })
        .collect()
}

#[track_caller]
fn check(how: &str, who: usize, said: &[&str]) {
    let mark = format!("{how}-{who}-{}", std::process::id());
    let outcome = launch(how, who, &mark).failure();
    let launcher = &outcome.ranks[0];
    // Everything, start included; the ten seconds count from the failure.
    assert!(launcher.took < Duration::from_secs(20), "{}", outcome.tails());
    let lines: Vec<&str> = launcher.stderr.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    for text in said {
        assert!(last.contains(text), "`{text}` is not in the report\n{}", outcome.tails());
    }
    assert_eq!(left_over(&mark), Vec::<String>::new());
}

#[test]
fn p26_an_error_is_named() {
    check("error", 1, &["rank 1", "the disk is full"]);
}

#[test]
fn p26_an_error_returned_as_a_value_is_named() {
    check("value", 1, &["rank 1", "the disk is full"]);
}

#[test]
fn p26_an_error_of_rank_0_is_named() {
    check("error", 0, &["rank 0", "the disk is full"]);
}

#[test]
fn p40_a_panic_is_named_with_its_place() {
    check("panic", 2, &["rank 2", "index out of luck", "failures.rs:"]);
}

#[test]
fn a_killed_rank_is_named() {
    check("kill", 1, &["rank 1", "SIGKILL"]);
}

#[test]
fn a_killed_rank_0_is_named() {
    check("kill", 0, &["rank 0", "SIGKILL"]);
}

#[test]
fn an_aborted_rank_is_named() {
    check("abort", 2, &["rank 2", "SIGABRT"]);
}
