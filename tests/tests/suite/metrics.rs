//! Figures of an evaluation whose samples the ranks share.
use crate::worker;

#[test]
fn p06_figures_do_not_depend_on_the_number_of_ranks() {
    for (ranks, backend) in [(1, "auto"), (2, "shm"), (3, "gloo"), (4, "shm")] {
        let outcome = worker("metrics").ranks(ranks).env("DDP_BACKEND", backend).run().success();
        let same = outcome.ranks.iter().all(|rank| rank.stdout == outcome.ranks[0].stdout);
        assert!(same, "the ranks have different figures\n{}", outcome.tails());
    }
}
