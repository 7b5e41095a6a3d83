//! Decisions and figures that all ranks share.
use std::time::Duration;

use crate::worker;

#[test]
fn all_ranks_get_one_answer() {
    for ranks in [1, 2, 3] {
        let _ = worker("votes").arg("decisions").ranks(ranks).run().success();
    }
}

#[test]
fn p39_figures_are_the_mean_and_the_sum_over_the_ranks() {
    for ranks in [1, 2, 3] {
        let _ = worker("votes").arg("figures").ranks(ranks).run().success();
    }
}

#[test]
fn p03_p04_ranks_that_skip_and_stop_by_vote_take_the_same_steps() {
    let outcome = worker("votes").arg("uneven").ranks(3).run().success();
    for rank in &outcome.ranks {
        // Three of five steps are bad on some rank; rank 0 has enough first.
        assert_eq!(rank.stdout, "11 steps, 18 skipped\n", "{}", outcome.tails());
    }
}

#[test]
fn p28_the_first_rank_of_a_host_prepares_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    // A limit below the time that the first rank takes: it must not count.
    let job = worker("votes").arg("first").arg(folder.path()).env("DDP_TIMEOUT", "8");
    let _ = job.ranks(3).run().success();
}

#[test]
fn p01_what_needs_all_ranks_in_a_section_of_one_is_an_error_at_once() {
    for what in [
        "barrier-in-main-only",
        "backward-in-main-only",
        "barrier-in-main-first",
        "backward-in-main-first",
    ] {
        let job = worker("votes").arg("inside-a-section").arg(what).limit(Duration::from_secs(40));
        let outcome = job.ranks(2).run().failure();
        for rank in &outcome.ranks {
            assert!(rank.took < Duration::from_secs(30), "{what}\n{}", outcome.tails());
            let said = rank.stderr.contains("inside a section that only one rank runs");
            assert!(said, "{what}\n{}", outcome.tails());
        }
    }
}
