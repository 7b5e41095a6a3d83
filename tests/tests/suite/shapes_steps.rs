//! The shapes s01 to s22 of real training code, each on one, two and three ranks.
use std::time::Duration;

use crate::worker;

/// On any number of ranks the shapes find what they require.
#[track_caller]
fn hold(names: &[&str]) {
    for ranks in [1, 2, 3] {
        let job = names.iter().fold(worker("shapes-steps"), |job, name| job.arg(name));
        let _ = job.ranks(ranks).run().success();
    }
}

#[test]
fn p33_s01_s02_s03_s04_s05_places_of_the_step() {
    hold(&["s01_all_in_one", "s02_helper", "s03_method", "s04_hidden", "s05_loop_of_its_own"]);
}

#[test]
fn s06_s07_s08_s09_forms_of_the_step() {
    hold(&["s06_one_call", "s07_by_hand", "s08_accumulation", "s09_changed_gradients"]);
}

#[test]
fn s10_s11_s12_own_optimizers_raw_leaves_losses() {
    hold(&["s10_own_optimizers", "s11_raw_leaves", "s12_losses"]);
}

#[test]
fn s13_s14_s15_stores() {
    hold(&["s13_two_stores", "s14_target_networks", "s15_where_the_store_is"]);
}

#[test]
fn p34_s15_a_hidden_store_of_another_shape_is_named() {
    let job = worker("shapes-steps").arg("s15_another_shape").limit(Duration::from_secs(40));
    let outcome = job.ranks(2).run().failure();
    let text = "parameter 2 is `head.bias [1] Float` on rank 0 and `head.bias [2] Float` on rank 1";
    for rank in &outcome.ranks {
        assert!(rank.took < Duration::from_secs(20), "{}", outcome.tails());
        assert!(rank.stderr.contains(text), "{}", outcome.tails());
    }
}

#[test]
fn s16_s17_names_late_layers_unused_parts() {
    hold(&["s16_names_and_late_layers", "s17_frozen_and_unused"]);
}

#[test]
fn p21_s18_the_learning_rate_of_each_step_is_the_plain_programs() {
    hold(&["s18_learning_rates"]);
}

#[test]
fn s19_running_statistics() {
    hold(&["s19_batch_norm"]);
}

#[test]
fn s20_s21_s22_batches() {
    hold(&["s20_iterators", "s20_text", "s21_full_batch", "s22_random_batches"]);
}

/// What rank 0 complains about; the others are silent.
#[track_caller]
fn said(name: &str, ranks: usize) -> String {
    let outcome = worker("shapes-steps").arg(name).ranks(ranks).run().success();
    let silent = outcome.ranks.iter().skip(1).all(|rank| rank.stderr.is_empty());
    assert!(silent, "another rank has its say\n{}", outcome.tails());
    outcome.ranks.into_iter().next().map(|rank| rank.stderr).unwrap_or_default()
}

#[test]
fn s21_one_line_says_that_nothing_was_shared() {
    assert_eq!(said("s21_full_batch", 1), "");
    let line = said("s21_full_batch", 2);
    assert!(line.starts_with("note: nothing was shared in `s21`: its 2 ranks took"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(said("s20_iterators", 2), "");
}

#[test]
fn s16_a_store_without_variables_is_named_once() {
    assert_eq!(said("s16_names_and_late_layers", 1), "");
    let line = said("s16_names_and_late_layers", 3);
    assert!(line.starts_with("warning: a variable store of `s16` has no variables"), "{line}");
    assert_eq!(line.lines().count(), 1);
}
