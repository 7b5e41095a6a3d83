//! Runs that go on from a checkpoint, and checkpoints that are not to be gone on from.
#![allow(clippy::unwrap_used, reason = "helpers of tests end a test by a panic, as tests do")]
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ddp_tests::{Job, Outcome};

use crate::worker;

fn job(case: &str, folder: &Path, ranks: usize) -> Job {
    worker("checkpoint").arg(case).arg(folder).ranks(ranks).limit(Duration::from_secs(300))
}

/// The line of rank `rank` that begins with `what`.
#[track_caller]
fn line<'a>(outcome: &'a Outcome, rank: usize, what: &str) -> &'a str {
    let found = outcome.ranks[rank].stdout.lines().find_map(|line| line.strip_prefix(what));
    found.unwrap_or_else(|| panic!("no line `{what}`\n{}", outcome.tails())).trim()
}

fn rows(outcome: &Outcome) -> Vec<i64> {
    let of = |rank| line(outcome, rank, "rows").split_whitespace().map(|row| row.parse().unwrap());
    (0..outcome.ranks.len()).flat_map(of).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Enough that a run is not over after ten kills, each of which may come late where the machine is busy.
const EPOCHS: &str = "40";

/// Kills the run ten times, a few steps after it began or went on, and lets it finish.
fn killed_ten_times(ranks: usize, backend: &str) {
    let folder = tempfile::tempdir().unwrap();
    let straight = folder.path().join("straight");
    let job = |case: &str, folder: &Path| job(case, folder, ranks).env("DDP_BACKEND", backend);
    let whole = job("train", &straight).arg(EPOCHS).run().success();
    let resumed = folder.path().join("resumed");
    let mut kills = 0;
    for attempt in 0..10_u64 {
        let victim = attempt as usize % ranks;
        // Moments without a pattern: in a step, in a save, between them.
        let (steps, millis) = (3 + attempt % 3, (attempt * 37 + 11) % 13);
        let killed = job("killed", &resumed).arg(EPOCHS).arg(victim.to_string());
        let outcome = killed.arg(steps.to_string()).arg(millis.to_string()).run();
        kills += usize::from(!outcome.ranks[victim].status.is_some_and(|status| status.success()));
    }
    let end = job("train", &resumed).arg(EPOCHS).run().success();
    assert_eq!(kills, 10, "the run was over before it was killed ten times");
    assert!(end.ranks[0].stderr.contains("resumed at epoch"), "{}", end.tails());
    for rank in 0..ranks {
        assert_eq!(line(&end, rank, "weights"), line(&whole, 0, "weights"), "{}", end.tails());
    }
    let seen = names(&resumed);
    assert!(seen.iter().all(|name| !name.starts_with('.')) && seen.len() == 2, "{seen:?}");
}

#[test]
fn a_run_killed_ten_times_ends_with_the_weights_of_one_that_was_not_on_one_process() {
    killed_ten_times(1, "auto");
}

#[test]
fn a_run_killed_ten_times_ends_with_the_weights_of_one_that_was_not_on_two_ranks() {
    killed_ten_times(2, "shm");
}

#[test]
fn a_run_stopped_in_the_middle_of_an_epoch_goes_on_bit_for_bit_over_gloo() {
    let folder = tempfile::tempdir().unwrap();
    let gloo = |case: &str, name: &str| {
        job(case, &folder.path().join(name), 2).arg("2").env("DDP_BACKEND", "gloo")
    };
    let whole = gloo("train", "straight").run().success();
    let _ = gloo("stop", "resumed").arg("17").run().success();
    let end = gloo("train", "resumed").run().success();
    assert_eq!(line(&end, 1, "weights"), line(&whole, 0, "weights"), "{}", end.tails());
}

#[test]
fn another_number_of_ranks_goes_on_with_the_samples_that_are_left() {
    let folder = tempfile::tempdir().unwrap();
    for (before, after) in [(2, 3), (3, 2), (2, 4)] {
        let path = folder.path().join(format!("{before}-{after}"));
        // 48 rows by two: after this many steps 24 of them are done.
        let steps = 24 / (2 * before);
        let first = job("stop", &path, before).arg("1").arg(steps.to_string()).run().success();
        let second = job("train", &path, after).arg("1").run().success();
        let mut seen = [rows(&first), rows(&second)].concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..48).collect::<Vec<_>>(), "{before} to {after}\n{}", second.tails());
    }
}

#[test]
fn with_shared_batches_one_process_goes_on_as_two_ranks_in_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    for (before, after) in [(1, 2), (2, 1)] {
        let path = folder.path().join(format!("{before}-{after}"));
        let global = |job: Job| job.env("DDP_BATCH", "global").run().success();
        let first = global(job("stop", &path, before).arg("1").arg("9"));
        let second = global(job("train", &path, after).arg("1"));
        let mut seen = [rows(&first), rows(&second)].concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..48).collect::<Vec<_>>(), "{before} to {after}\n{}", second.tails());
    }
}

#[test]
fn a_change_of_order_in_the_middle_of_an_epoch_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let _ = job("stop", &path, 1).arg("1").arg("8").run().success();
    let end = job("train", &path, 2).arg("1").run().success();
    let said = "may repeat samples and leave others out";
    assert!(end.ranks[0].stderr.contains(said), "{}", end.tails());
    // 16 of 48 rows are done: 16 are left for each of the two.
    assert_eq!(rows(&end).len(), 32, "{}", end.tails());
}

#[test]
fn no_damaged_byte_of_a_checkpoint_gives_wrong_weights() {
    let folder = tempfile::tempdir().unwrap();
    let _ = job("damage", folder.path(), 0).run().success();
}

#[test]
fn a_program_that_has_changed_is_told_the_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let _ = job("changed", folder.path(), 0).run().success();
}

#[test]
fn the_weights_are_a_file_that_plain_tch_loads() {
    let folder = tempfile::tempdir().unwrap();
    let _ = job("plain-file", folder.path(), 0).run().success();
}

#[test]
fn p29_the_main_rank_alone_writes() {
    let folder = tempfile::tempdir().unwrap();
    let _ = job("writers", folder.path(), 3).run().success();
    let path = folder.path().join("run");
    let _ = job("stop", &path, 3).arg("1").arg("5").run().success();
    assert_eq!(names(&path), BTreeSet::from(["000001-step-3".into(), "000002-step-5".into()]));
    let files = ["adam.optimizer", "checkpoint.json", "model.safetensors", "state.msgpack"];
    assert_eq!(names(&path.join("000002-step-5")), files.map(String::from).into());
}

#[test]
fn s38_a_checkpoint_that_one_rank_alone_sees_is_an_error_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = job("apart", folder.path(), 2).run().failure();
    for rank in &outcome.ranks {
        let said = ["rank 0 sees 000002-step-2", "rank 1 sees no checkpoint", "all ranks share"];
        assert!(said.iter().all(|text| rank.stderr.contains(text)), "{}", outcome.tails());
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_an_error_on_all_ranks_and_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let _ = job("unwritable", folder.path(), 2).run().success();
}

#[test]
fn p01_ranks_that_save_other_things_or_are_elsewhere_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (how, said) in [
        ("parts", "rank 0 saves [value one] at step 0"),
        ("barrier", "rank 0 is saving a checkpoint after 0 backwards, rank 1 is in a barrier"),
    ] {
        let outcome = job("differ", folder.path(), 2).arg(how).run().failure();
        for rank in &outcome.ranks {
            assert!(rank.stderr.contains(said), "{}", outcome.tails());
        }
        assert_eq!(names(folder.path()), BTreeSet::new(), "a part of a checkpoint was left");
    }
}
