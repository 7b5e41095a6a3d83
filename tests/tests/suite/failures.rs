//! A rank that ends in the middle: the launcher ends soon, names it, and leaves no process behind.
use std::time::Duration;

use ddp_tests::{Job, Outcome};

/// Everything, start included, on a busy machine; the ten seconds count from the failure. Ranks that did not hear of it would
/// wait for a minute.
const SOON: Duration = Duration::from_secs(30);

/// A case of the worker on three ranks under `cargo ddp run`, with a mark by which its processes are found again.
fn launch(case: &[&str], mark: &str) -> Outcome {
    let job = Job::new(env!("CARGO_BIN_EXE_ddp-launch"), "run").arg("-n").arg("3");
    let job = job.arg("--exec").arg(env!("CARGO_BIN_EXE_ddp-worker")).arg("--");
    let job = case.iter().fold(job, |job, arg| job.arg(arg));
    job.env("DDP_TEST_MARK", mark).limit(Duration::from_secs(60)).run()
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

/// Returns all that the launcher wrote to its error stream, in whose last lines it names the rank and says this.
#[track_caller]
fn check(how: &str, who: usize, said: &[&str]) -> String {
    let mark = format!("{how}-{who}-{}", std::process::id());
    let outcome = launch(&["failures", how, &who.to_string()], &mark).failure();
    let named = format!("error: rank {who} of 3 failed first");
    reported(&outcome, &[said, &[named.as_str()]].concat());
    assert_eq!(left_over(&mark), Vec::<String>::new());
    outcome.ranks[0].stderr.clone()
}

/// The launcher has ended soon, and its last lines say this.
#[track_caller]
fn reported(outcome: &Outcome, said: &[&str]) {
    let launcher = &outcome.ranks[0];
    assert!(launcher.took < SOON, "{}", outcome.tails());
    let lines: Vec<&str> = launcher.stderr.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    for text in said {
        assert!(last.contains(text), "`{text}` is not in the report\n{}", outcome.tails());
    }
}

/// What the other ranks say when they leave.
#[track_caller]
fn heard(stderr: &str, text: &str) {
    assert!(stderr.contains(text), "no other rank says `{text}`\n{stderr}");
}

#[test]
fn p26_an_error_is_named() {
    let stderr = check("error", 1, &["the disk is full", "during: train"]);
    heard(&stderr, "rank 1 failed: it returned early with an error");
}

#[test]
fn p26_an_error_returned_as_a_value_is_named() {
    check("value", 1, &["the disk is full", "during: train_with_value"]);
}

#[test]
fn p26_an_error_of_rank_0_is_named() {
    let stderr = check("error", 0, &["the disk is full", "during: train"]);
    heard(&stderr, "rank 0 failed: it returned early with an error");
}

/// The others have left long before the rank that failed has.
#[test]
fn p26_an_error_of_a_rank_that_is_slow_to_end_is_named() {
    let stderr = check("slow", 1, &["during: train"]);
    heard(&stderr, "rank 1 failed: it returned early with an error");
}

#[test]
fn p26_what_ranks_that_differ_do_is_in_the_report() {
    let mark = format!("differ-{}", std::process::id());
    let outcome = launch(&["mismatch", "fewer-steps-annotated"], &mark).failure();
    let facts = "ranks 0 and 2 are in backward number 4, rank 1 is leaving after 3 backwards";
    reported(&outcome, &[&format!("| the ranks do different things: {facts}")]);
    assert_eq!(left_over(&mark), Vec::<String>::new());
}

#[test]
fn p40_a_panic_is_named_with_its_place() {
    let place = "at: tests/src/cases/failures.rs:";
    let stderr = check("panic", 2, &["| panicked: index out of luck", "during: train", place]);
    heard(&stderr, "rank 2 failed: panicked: index out of luck");
}

#[test]
fn a_killed_rank_is_named() {
    check("kill", 1, &["SIGKILL"]);
}

#[test]
fn a_killed_rank_0_is_named() {
    check("kill", 0, &["SIGKILL"]);
}

#[test]
fn an_aborted_rank_is_named() {
    check("abort", 2, &["SIGABRT"]);
}
