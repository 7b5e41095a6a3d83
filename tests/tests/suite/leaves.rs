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
    running_statistics_are_equal_after_each_step: "buffers";
}
