//! Ranks that take 7, 9 and 12 steps.
use std::time::Duration;

use ddp_tests::Job;

use crate::worker;

fn job(case: &str, ranks: usize) -> Job {
    worker("uneven").arg(case).ranks(ranks).limit(Duration::from_secs(60))
}

#[track_caller]
fn refused(job: &Job, said: &[&str]) {
    let outcome = job.run().failure();
    for rank in &outcome.ranks {
        for text in said {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

#[test]
fn p02_the_first_rank_to_leave_ends_the_job_within_five_seconds() {
    let facts = "rank 0 is leaving after 7 backwards, ranks 1 and 2 are in backward number 8";
    refused(&job("error", 3), &[facts, "let them vote on leaving a loop"]);
}

#[test]
fn p02_joined_ranks_take_the_mean_of_those_that_still_train() {
    for (ranks, backend) in [(1, "auto"), (2, "shm"), (3, "shm"), (3, "gloo")] {
        let outcome = job("join", ranks).env("DDP_BACKEND", backend).run().success();
        let told = outcome.ranks.iter().filter(|rank| rank.stderr.contains("the ranks took 7, 9"));
        assert_eq!(told.count(), usize::from(ranks > 1), "{}", outcome.tails());
    }
}

#[test]
fn a_joined_rank_waits_at_the_save_and_saves_the_last_weights() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let path = folder.path().join(format!("{ranks}.safetensors"));
        let _ = job("save", ranks).arg(path).run().success();
    }
}

#[test]
fn who_has_missed_steps_does_not_train_on() {
    let folder = tempfile::tempdir().unwrap();
    let job = job("trains-on", 3).arg(folder.path().join("weights.safetensors"));
    refused(&job, &["rank 0 waited in a save while others took 5 steps more, and now trains on"]);
}

#[test]
fn what_a_joined_rank_cannot_take_part_in_is_refused() {
    refused(&job("late-layer", 2), &["rank 0", "no more steps to take"]);
    refused(&job("gather", 2), &["rank 0", "no more steps to take"]);
    refused(&job("first-has-left", 2), &["`main_first`", "call it before the training loop"]);
}
