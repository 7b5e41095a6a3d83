//! Parameters that not every backward, or not every rank, reaches.
use crate::worker;

macro_rules! cases {
    ($($name:ident: $($arg:literal)+;)*) => {$(
        #[test]
        fn $name() {
            for ranks in [1, 2, 3] {
                let job = worker("leaves")$(.arg($arg))+;
                let _ = job.ranks(ranks).run().success();
            }
        }
    )*};
}
cases! {
    large_gradients_in_a_branch_that_only_one_rank_takes: "branch-by-rank" "large";
    large_gradients_that_nobody_used: "unused-everywhere" "large";
    large_gradients_of_two_kinds_of_backward: "taking-turns" "large";
    a_large_gradient_that_is_kept_keeps_its_values: "kept-gradient" "large";
    large_gradients_that_were_accumulated_are_averaged: "no-sync" "large";
    large_gradients_of_unequal_weights: "unequal-weights" "large";
    clipping_sees_the_mean_of_large_gradients: "clipping" "large";
    p17_a_branch_that_only_one_rank_takes: "branch-by-rank";
    p15_what_nobody_used_stays_without_a_gradient: "unused-everywhere";
    two_kinds_of_backward_leave_each_other_alone: "taking-turns";
    a_gradient_that_is_kept_keeps_its_values: "kept-gradient";
    p19_no_sync_averages_what_was_accumulated: "no-sync";
    p33_unequal_weights_become_those_of_rank_0: "unequal-weights";
    p13_running_statistics_are_equal_after_each_step: "buffers";
    p13_buffers_are_spread_unseen_by_a_graph_that_keeps_them: "buffers-in-a-graph";
    p23_clipping_sees_the_mean: "clipping";
}

#[test]
fn large_gradients_between_hosts() {
    for case in ["no-sync", "branch-by-rank", "kept-gradient"] {
        let job = worker("leaves").arg(case).arg("large").ranks(4).ranks_per_host(2);
        let _ = job.run().success();
    }
}

#[test]
fn s19_running_statistics_are_equal_at_a_save_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let job = worker("leaves").arg("buffers-at-the-end").arg(folder.path());
        let _ = job.ranks(ranks).run().success();
    }
}
