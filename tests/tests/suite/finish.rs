//! The end of a scope that ends well.
use std::time::Duration;

use crate::worker;

fn on_both_transports(case: &str) {
    for (ranks, backend) in [(2, "shm"), (3, "gloo")] {
        let job = worker("finish").arg(case).ranks(ranks).env("DDP_BACKEND", backend);
        let outcome = job.run().success();
        let silent = outcome.ranks.iter().all(|rank| rank.stderr.is_empty());
        assert!(silent, "a rank complains\n{}", outcome.tails());
    }
}

#[test]
fn p40_ranks_leave_a_scope_together() {
    on_both_transports("together");
}

#[test]
fn p40_scopes_give_back_what_they_took() {
    on_both_transports("nothing-left");
}

/// A rank that fails ends at once, and not when the others come to what it had begun.
#[test]
fn p40_a_rank_that_fails_waits_for_nobody() {
    for backend in ["shm", "gloo"] {
        let job = worker("finish").arg("given-up").ranks(2).env("DDP_BACKEND", backend);
        let outcome = job.run().failure();
        let (failed, other) = (&outcome.ranks[0], &outcome.ranks[1]);
        assert!(failed.stderr.contains("modified by an inplace operation"), "{}", outcome.tails());
        assert!(other.stderr.contains("rank 0 failed"), "{}", outcome.tails());
        assert!(failed.took + Duration::from_secs(5) < other.took, "{}", outcome.tails());
    }
}
