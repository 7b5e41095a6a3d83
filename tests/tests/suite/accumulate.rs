//! Groups of backwards, averaged once.
use crate::worker;

#[track_caller]
fn refused(case: &str, said: &[&str]) {
    let outcome = worker("accumulate").arg(case).ranks(2).run().failure();
    for rank in &outcome.ranks {
        for text in said {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

#[test]
fn p19_groups_and_their_remainder_follow_one_process() {
    for ranks in [1, 2, 3] {
        let _ = worker("accumulate").arg("with-remainder").ranks(ranks).run().success();
    }
}

#[test]
fn p19_a_group_is_averaged_with_all_that_it_reached() {
    for ranks in [1, 2, 3] {
        let job = worker("accumulate").arg("group-of-two").ranks(ranks);
        if ranks > 1 {
            let _ = job.run().success();
        }
    }
}

#[test]
fn p19_a_step_too_early_ends_the_job_unless_it_is_averaged_for() {
    refused("too-early", &["was changed by gradients that had not been averaged", "2 of the 3"]);
    let _ = worker("accumulate").arg("too-early-averaged").ranks(2).run().success();
}

#[test]
fn accumulation_and_uneven_ranks_do_not_go_together() {
    refused("with-join", &["`accumulate` and `uneven = \"join\"` do not go together"]);
}

#[test]
fn options_that_differ_between_ranks_are_named() {
    let job = worker("accumulate").arg("group-of-two").ranks(2);
    let outcome = job.env_of(1, "DDP_ACCUMULATE", "3").run().failure();
    let text = "rank 0 has the option accumulate = 2, rank 1 accumulate = 3";
    assert!(outcome.ranks[0].stderr.contains(text), "{}", outcome.tails());
}
