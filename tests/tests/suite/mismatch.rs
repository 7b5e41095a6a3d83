//! Ranks that do different things end in an error that says what each does, and never in a hang.
use std::time::Duration;

use crate::worker;

#[track_caller]
fn check(case: &str, ranks: usize, said: &[&str]) {
    let outcome =
        worker("mismatch").arg(case).ranks(ranks).limit(Duration::from_secs(40)).run().failure();
    for rank in &outcome.ranks {
        assert!(rank.took < Duration::from_secs(20), "{}", outcome.tails());
        for text in said {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

#[test]
fn p34_another_parameter_is_named_with_its_rank() {
    let text = "parameter 2 is `head.bias [4] Float` on rank 0 and `head.bias [5] Float` on rank 2";
    check("parameters", 3, &[text, "build the same model"]);
}

#[test]
fn p34_a_leaf_outside_stores_of_another_size_is_named_with_its_rank() {
    let leaf = |size| format!("`a leaf outside any store, [{size}] [{size}] Float`");
    let text = format!("parameter 0 is {} on rank 0 and {} on rank 1", leaf(3), leaf(4));
    check("leaves", 2, &[&text]);
}

#[test]
fn p02_fewer_steps_are_an_error_that_counts_them() {
    let facts = "ranks 0 and 2 are in backward number 4, rank 1 is leaving after 3 backwards";
    check("fewer-steps", 3, &[facts, "all ranks must take the same number of steps"]);
}

#[test]
fn p02_a_marked_function_that_leaves_early_ends_the_job() {
    let facts = "rank 0 is in backward number 4, rank 1 is leaving after 3 backwards";
    check("fewer-steps-annotated", 2, &[facts, "let them vote on leaving a loop"]);
}

#[test]
fn p01_a_barrier_of_one_rank_is_an_error() {
    let facts = "rank 0 is in a barrier after 1 backwards, rank 1 is in backward number 2";
    check("lone-barrier", 2, &[facts, "take them out of branches"]);
}

#[test]
fn tensors_of_different_shapes_are_refused() {
    check("shapes", 2, &["tensors of other shapes"]);
}

#[test]
fn a_step_on_another_thread_is_refused() {
    check("thread", 2, &["on a thread of its own"]);
}

#[test]
fn a_sparse_gradient_is_refused() {
    check("sparse", 2, &["sparse: false"]);
}

#[test]
fn an_unusable_group_says_why() {
    check("poisoned", 2, &["unusable since an earlier error", "tensors of other shapes"]);
}
