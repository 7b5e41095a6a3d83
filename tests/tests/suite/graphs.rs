//! Graphs out of the ordinary.
use crate::worker;

#[track_caller]
fn works(case: &str, ranks: &[usize]) {
    for &ranks in ranks {
        let _ = worker("graphs").arg(case).ranks(ranks).run().success();
    }
}

#[track_caller]
fn refused(case: &str, said: &[&str]) {
    let outcome = worker("graphs").arg(case).ranks(2).run().failure();
    for rank in &outcome.ranks {
        for text in said {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

#[test]
fn p15_what_is_left_without_a_gradient_counts_as_zero_or_stays_so() {
    works("undefined", &[1, 2, 3]);
}

#[test]
fn shared_parameters_and_two_dtypes() {
    works("shared-and-mixed", &[2, 3]);
}

#[test]
fn a_graph_that_is_gone_through_twice() {
    works("kept-graph", &[2]);
}

#[test]
fn gradients_with_a_graph_are_refused() {
    refused("created-graph", &["`Tensor::run_backward`"]);
}

#[test]
fn an_activation_that_is_cut_off_stays_each_ranks_own() {
    works("checkpoint", &[1, 2, 3]);
    refused("checkpoint-unsaid", &["a leaf outside any store, [2, 3]", "`ignore(&tensor)`"]);
}

#[test]
fn a_layer_added_after_a_batch_is_equal_before_its_first_step() {
    works("late-layer", &[1, 2, 3]);
}

#[test]
fn dropped_models_give_their_memory_back() {
    works("many-models", &[2]);
}

#[test]
fn p17_a_replica_that_drifts_is_named() {
    let text = "in backward number 6 `drifting` has other values on rank 1 than on rank 0";
    refused("drift", &[text]);
    works("drift-unseen", &[2]);
}
