//! With `batch = "global"` the weights of several ranks are those of a single process.
use ddp_tests::Outcome;

use crate::worker;

fn run(args: &[&str], ranks: usize) -> Outcome {
    args.iter().fold(worker("global"), |job, arg| job.arg(arg)).ranks(ranks).run()
}

/// Three ranks do not divide 16; the last batch of 100 samples has 4 rows.
fn follows(args: &[&str]) {
    for ranks in [1, 2, 3] {
        let outcome = run(args, ranks).success();
        for rank in &outcome.ranks {
            assert!(rank.stdout.contains("largest relative error"), "{}", outcome.tails());
        }
    }
}

macro_rules! programs {
    ($($name:ident: $($arg:literal)*;)*) => {$(
        #[test]
        fn $name() {
            follows(&[$($arg),*]);
        }
    )*};
}
programs! {
    p20_adam_follows_one_process: "epochs" "mlp" "adam" "16";
    p20_sgd_follows_one_process: "epochs" "mlp" "sgd" "16";
    p20_conv_follows_one_process: "epochs" "conv" "sgd" "16";
    p20_accumulation_reseeding_and_an_early_end: "mixed" "mlp" "adam" "16";
    p20_an_odd_batch_size: "mixed" "conv" "sgd" "7";
    p19_p20_by_hand_with_backwards_averaged_later: "by-hand";
    p33_ranks_seeded_apart_take_rank_0s_order: "seeded-apart" "mlp" "sgd";
    p20_text_follows_one_process: "text";
}

/// Every rank ends, with this said.
#[track_caller]
fn refused(args: &[&str], ranks: usize, said: &str) {
    let outcome = run(args, ranks).failure();
    for rank in &outcome.ranks {
        assert!(rank.status.is_some_and(|status| !status.success()), "{}", outcome.tails());
        assert!(rank.stderr.contains(said), "`{said}` is missing\n{}", outcome.tails());
    }
}

#[test]
fn p02_a_last_batch_with_fewer_rows_than_ranks_is_refused_on_all_ranks() {
    // 100 = 3 * 33 + 1
    refused(
        &["ragged", "33"],
        3,
        "3 ranks cannot share a batch of size 1 (100 samples in batches of 33); take fewer ranks, a batch size of \
         at least 3, or drop the smaller last batch",
    );
}

#[test]
fn p20_unequal_parts_drawn_ahead_are_refused_and_equal_ones_are_not() {
    refused(&["ahead", "16"], 3, "drawn ahead of it in parts of unequal size");
    let _ = run(&["ahead", "16"], 2).success();
    let _ = run(&["ahead", "18"], 3).success();
}

#[test]
fn ranks_that_shuffle_data_of_other_sizes_are_named() {
    refused(&["sizes"], 2, "rank 0 shuffles 100 samples, rank 1 99; read the same data set");
}

#[test]
fn the_option_on_an_inner_function_alone_is_refused() {
    refused(&["inner"], 2, "write it on the outermost of the two");
}
