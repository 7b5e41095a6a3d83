//! The data loader on several ranks.
use std::time::Duration;

use crate::worker;

fn all_well(args: &[&str], worlds: &[usize]) {
    for &ranks in worlds {
        let job = args.iter().fold(worker("loader"), |job, arg| job.arg(arg));
        let _ = job.ranks(ranks).run().success();
    }
}

#[test]
fn ranks_share_the_order_of_one_process() {
    all_well(&["shares"], &[0, 1, 2, 3]);
}

#[test]
fn p02_training_with_a_loader_follows_one_process() {
    for rule in ["per-rank", "padded", "global"] {
        all_well(&["course", rule], &[1, 2, 3]);
    }
}

#[test]
fn p06_figures_of_an_evaluation_loader_do_not_depend_on_the_ranks() {
    all_well(&["evaluation"], &[0, 1, 2, 3, 4]);
}

#[test]
fn p02_a_stream_ends_on_all_ranks_with_the_first() {
    for workers in ["0", "2"] {
        let outcome = worker("loader").arg("stream").arg(workers).ranks(3).run().success();
        for rank in &outcome.ranks {
            // Ten samples on rank 0: five batches, or two workers' two full and one half.
            let steps = if workers == "0" { "5 steps\n" } else { "6 steps\n" };
            assert_eq!(rank.stdout, steps, "{}", outcome.tails());
        }
    }
}

#[test]
fn p02_batches_that_are_shared_twice_are_refused() {
    let outcome = worker("loader").arg("twice").ranks(2).run().failure();
    assert!(
        outcome.tails().contains("this loop deals them out a second time"),
        "{}",
        outcome.tails()
    );
    all_well(&["twice"], &[1]);
    all_well(&["shard-of-whole"], &[2]);
}

#[test]
fn the_main_rank_reads_for_all() {
    for how in ["split", "whole"] {
        all_well(&["dispatch", how], &[0, 1, 2, 3, 4]);
    }
}

#[test]
fn what_the_main_rank_cannot_read_ends_all_ranks() {
    let outcome = worker("loader").arg("dispatch").arg("torn").ranks(3).run().failure();
    for rank in &outcome.ranks {
        assert!(rank.stderr.contains("line 7 is torn"), "{}", outcome.tails());
        assert!(rank.took < Duration::from_secs(60), "{}", outcome.tails());
    }
}

/// Four ranks, then two, then three, with other batch sizes: every sample once.
#[test]
fn an_epoch_goes_on_with_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen.json");
    for (ranks, batch, batches) in [(4, "3", "2"), (2, "8", "1"), (3, "5", "100")] {
        let job = worker("loader").arg("resume").arg(&file).arg(batch).arg(batches);
        let _ = job.ranks(ranks).run().success();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let mut seen: Vec<i64> = serde_json::from_str(&text).unwrap();
    // 101 samples: 24, 16 and 61 of them, of which three ranks leave one.
    assert_eq!(seen.len(), 100);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 100);
}

#[test]
fn a_worker_that_fails_on_one_rank_ends_all_with_its_sample() {
    for how in ["error", "panic"] {
        let outcome = worker("loader").arg("torn").arg(how).ranks(2).run().failure();
        let (own, other) = (&outcome.ranks[1], &outcome.ranks[0]);
        assert!(own.stderr.contains("sample 61"), "{}", outcome.tails());
        assert!(own.stderr.contains("row 61 is torn"), "{}", outcome.tails());
        assert!(other.stderr.contains("rank 1 failed"), "{}", outcome.tails());
        for rank in &outcome.ranks {
            // Ended by itself, in time, and not by a signal while workers were still reading.
            assert!(rank.status.unwrap().code().is_some(), "{}", outcome.tails());
            assert!(rank.took < Duration::from_secs(60), "{}", outcome.tails());
        }
    }
}
