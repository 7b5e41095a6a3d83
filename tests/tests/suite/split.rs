//! With `batch = "global"` the ranks share each item of a marked loop, and follow a single process.
use ddp_tests::Outcome;

use crate::worker;

fn run(case: &str, ranks: usize, env: &[(&str, &str)]) -> Outcome {
    let job = worker("split").arg(case).ranks(ranks);
    env.iter().fold(job, |job, (name, value)| job.env(name, value)).run()
}

/// Every rank ends, with this said.
#[track_caller]
fn refused(case: &str, ranks: usize, env: &[(&str, &str)], said: &str) {
    let outcome = run(case, ranks, env).failure();
    for rank in &outcome.ranks {
        assert!(rank.stderr.contains(said), "`{said}` is missing\n{}", outcome.tails());
    }
}

const GLOBAL: &[(&str, &str)] = &[("DDP_BATCH", "global")];

#[test]
fn p20_s12_s24_batches_of_all_types_and_sums_follow_one_process() {
    for ranks in [1, 2, 3] {
        let _ = run("follow", ranks, &[]).success();
    }
}

#[test]
fn p20_the_option_from_the_environment_splits_items_that_can_be() {
    let _ = run("from-outside", 3, GLOBAL).success();
}

#[test]
fn s12_a_sum_over_batches_of_ones_own_is_refused() {
    refused(
        "sum-of-own-batches",
        2,
        &[],
        "loss = \"sum\" has no meaning where every rank has batches of its own",
    );
    let _ = run("sum-of-own-batches", 2, GLOBAL).success();
}

#[test]
fn p20_a_sum_drawn_ahead_is_refused_though_its_parts_are_equal() {
    refused("ahead", 2, &[], "in parts of unequal size or of a sum");
}

#[test]
fn p02_a_batch_with_fewer_samples_than_ranks_is_refused_on_all_ranks() {
    // 33 = 2 * 16 + 1
    refused("too-small", 3, &[], "3 ranks cannot share a batch of 1 samples");
}

#[test]
fn ranks_that_share_batches_of_other_sizes_are_named() {
    let said = "rank 0 steps on its part of 15 samples, rank 1 steps on its part of 14 samples; read the same data";
    refused("sizes", 2, &[], said);
}

#[test]
fn columns_of_different_sizes_are_named() {
    refused("columns", 2, &[], "`0` has 16 samples, `1` has 15");
}

#[test]
fn items_that_cannot_be_split_are_dealt_out_whole_or_refused() {
    // Seven batches, of which three ranks take two each.
    let outcome = run("references", 3, &[]).success();
    assert!(
        outcome.ranks.iter().all(|rank| rank.stdout.contains("2 steps")),
        "{}",
        outcome.tails()
    );
    refused("references", 2, GLOBAL, "cannot do with a `&(tch::wrappers::tensor::Tensor, ");
    let _ = run("numbers", 2, &[]).success();
    refused(
        "numbers",
        2,
        GLOBAL,
        "an item of this loop, a `i64`, has no samples that the ranks could share",
    );
}
