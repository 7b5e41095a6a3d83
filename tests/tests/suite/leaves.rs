//! Parameters that not every backward, or not every rank, reaches.
use crate::worker;

macro_rules! cases {
    ($($name:ident: $case:literal;)*) => {$(
        #[test]
        fn $name() {
            for ranks in [1, 2, 3] {
                let _ = worker("leaves").arg($case).ranks(ranks).run().success();
            }
        }
    )*};
}
cases! {
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
fn s19_running_statistics_are_equal_at_a_save_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let job = worker("leaves").arg("buffers-at-the-end").arg(folder.path());
        let _ = job.ranks(ranks).run().success();
    }
}
