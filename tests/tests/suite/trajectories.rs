//! A hundred steps of whole training programs end where one process ends.
use crate::worker;

macro_rules! trajectories {
    ($($name:ident: $case:literal;)*) => {$(
        #[test]
        fn $name() {
            for ranks in [1, 2, 3] {
                let outcome = worker("trajectories").arg($case).ranks(ranks).run().success();
                for rank in &outcome.ranks {
                    assert!(rank.stdout.contains("largest relative error"), "{}", outcome.tails());
                }
            }
        }
    )*};
}
trajectories! {
    s13_a_generator_and_a_discriminator: "gan";
    s13_an_actor_and_a_critic_with_one_trunk: "actor-critic";
    p15_a_branch_that_one_rank_takes_now_and_then: "branch";
    s17_a_backbone_that_is_frozen_at_first: "frozen";
    p19_accumulation_with_a_short_last_group: "accumulation";
    p20_batch_norm_over_all_ranks_in_shared_batches: "batch-norm";
}
