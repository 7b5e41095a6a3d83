//! The shapes s23 to s45 of real training code, each on one, two and three ranks.
use std::time::Duration;

use ddp_tests::Job;

use crate::failures::left_over;
use crate::worker;

/// One worker that runs these shapes in turn.
fn shapes(shapes: &[&str]) -> Job {
    shapes.iter().fold(worker("shapes-loops"), |job, shape| job.arg(shape))
}

/// The same under `cargo ddp run`.
fn launched(shape: &str, ranks: usize) -> Job {
    let job = Job::new(env!("CARGO_BIN_EXE_ddp-launch"), "run").arg("-n").arg(ranks.to_string());
    let job = job.arg("--exec").arg(env!("CARGO_BIN_EXE_ddp-worker")).arg("--");
    job.arg("shapes-loops").arg(shape).limit(Duration::from_secs(60))
}

/// On any number of ranks the shapes find what they require.
#[track_caller]
fn hold(names: &[&str]) {
    for ranks in [1, 2, 3] {
        let _ = shapes(names).ranks(ranks).run().success();
    }
}

/// All ranks end soon and by themselves, each with these words.
#[track_caller]
fn refused(name: &str, ranks: usize, said: &[&str]) {
    let outcome = shapes(&[name]).ranks(ranks).limit(Duration::from_secs(40)).run().failure();
    for rank in &outcome.ranks {
        assert!(rank.took < Duration::from_secs(20), "{}", outcome.tails());
        for text in said {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

#[test]
fn s23_s24_s25_data_in_marked_loops() {
    hold(&["s23_index_arithmetic", "s24_own_loader", "s25_side_by_side"]);
}

#[test]
fn s24_a_batch_that_cannot_be_read() {
    let outcome = shapes(&["s24_own_loader:torn"]).ranks(2).run().failure();
    assert!(outcome.tails().contains("batch 3 is torn"), "{}", outcome.tails());
}

#[test]
fn s26_streams_of_one_length_and_streams_that_end_by_a_vote() {
    hold(&["s26_stream:equal", "s26_stream:vote"]);
}

#[test]
fn s26_a_stream_that_ends_before_the_others_is_named() {
    let text = "ranks 1 and 2 are in backward number 6";
    refused("s26_stream:unequal", 3, &["rank 0 is leaving after 5 backwards", text]);
}

#[test]
fn s27_s28_s29_s30_epochs_and_exits() {
    hold(&["s27_epoch_loops", "s28_leaving_early:together", "s29_errors", "s30_skipping:voted"]);
}

#[test]
fn p05_s27_a_resumed_run_has_the_orders_of_its_epochs() {
    let run = |form: &str, start: &str| {
        let outcome = shapes(&[&format!("s27_resumed:{form}:{start}")]).ranks(2).run().success();
        outcome.ranks.into_iter().map(|rank| rank.stdout).collect::<Vec<_>>()
    };
    for form in ["for", "while"] {
        for (whole, resumed) in run(form, "0").iter().zip(run(form, "2")) {
            assert!(resumed.starts_with("epoch 2: [") && resumed.lines().count() == 2, "{resumed}");
            assert!(whole.ends_with(&resumed), "{whole} does not end with {resumed}");
        }
    }
}

#[test]
fn p04_s28_a_rank_that_leaves_by_its_own_clock_is_named() {
    let facts = ["rank 0 is leaving after 3 backwards", "rank 1 is in backward number 4"];
    refused("s28_leaving_early:unvoted", 2, &facts);
}

#[test]
fn p26_s29_the_error_of_the_rank_that_failed_is_read_last() {
    for (kind, text) in [
        ("anyhow", "anyhow: diverged in step 1"),
        ("tch", "777"),
        ("box", "box: invalid float literal"),
        ("own", "own: diverged in step 1"),
    ] {
        let outcome = launched(&format!("s29_errors:{kind}"), 2).run().failure();
        let launcher = &outcome.ranks[0];
        assert!(launcher.took < Duration::from_secs(20), "{}", outcome.tails());
        let lines: Vec<&str> = launcher.stderr.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        assert!(last.contains("rank 1") && last.contains(text), "{}", outcome.tails());
    }
}

#[test]
fn p03_s30_a_rank_that_skips_alone_is_named() {
    // Rank 1 skips the first of three batches and leaves after two.
    let facts = ["rank 0 is in backward number 3", "rank 1 is leaving after 2 backwards"];
    refused("s30_skipping:unvoted", 2, &facts);
}

#[test]
fn s31_s32_devices_of_a_host_without_a_gpu() {
    if tch::Cuda::is_available() {
        eprintln!("skipped: this host has a GPU");
        return;
    }
    hold(&["s31_cuda_in_the_body", "s32_cpu_constants"]);
    refused("s31_no_gpu", 2, &["CUDA"]);
}

#[test]
fn p39_s33_one_rank_prints_what_one_process_prints() {
    let run = |shape: &str, ranks| {
        let outcome = shapes(&[shape]).ranks(ranks).run().success();
        outcome.ranks.into_iter().map(|rank| (rank.stdout, rank.stderr)).collect::<Vec<_>>()
    };
    let plain = run("s33_prints:plain", 1);
    assert!(plain[0].0.contains("2: moved ") && plain[0].1.contains("2 * epoch = 4"), "{plain:?}");
    assert_eq!(run("s33_prints:shared", 1), plain);
    for ranks in [2, 3] {
        let outputs = run("s33_prints:shared", ranks);
        let (first, others) = outputs.split_first().unwrap();
        assert_eq!(first.0.matches("loss ").count(), 3 * 6 / ranks, "{}", first.0);
        assert_eq!(first.0.matches("moved").count(), 3);
        assert_eq!(first.1, plain[0].1);
        for other in others {
            assert_eq!(*other, (String::new(), String::new()));
        }
    }
}

#[test]
fn p39_s34_progress_bars() {
    hold(&["s34_progress_bars", "s34_bars_of_iterators"]);
}

#[test]
fn p39_s35_logs_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let shape = format!("s35_logs_and_files:{}", folder.path().display());
    for ranks in [1, 2, 3] {
        let outcome = shapes(&[&shape]).ranks(ranks).run().success();
        for (rank, end) in outcome.ranks.iter().enumerate() {
            let count = |text: &str| end.stderr.matches(text).count();
            let levels = [count("INFO: "), count("DEBUG: "), count("WARN: "), count("ERROR: ")];
            assert_eq!(levels, [if rank == 0 { 2 } else { 0 }, 0, 2, 2], "{}", outcome.tails());
        }
    }
}

#[test]
fn s35_a_warning_is_shown_with_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let shape = format!("s35_logs_and_files:{}", folder.path().display());
    let outcome = launched(&shape, 2).run().success();
    let stderr = &outcome.ranks[0].stderr;
    assert!(stderr.contains("\n[rank 1] WARN: careful, epoch 1\n"), "{}", outcome.tails());
    assert_eq!(stderr.matches("INFO: ").count(), 2, "{}", outcome.tails());
}

#[test]
fn p29_s36_s37_s38_saving_and_loading() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |shape: &str, name: &str| {
        let folder = folder.path().join(name);
        format!("{shape}:{}", folder.display())
    };
    hold(&[
        &in_folder("s36_forms_of_save", "forms"),
        &in_folder("s36_behind_pointers", "pointers"),
        &in_folder("s36_folder_of_all_ranks", ""),
        &in_folder("s37_keep_the_best:together", "best"),
        &in_folder("s38_resume", "resume"),
    ]);
}

#[test]
fn s37_a_rank_that_saves_alone_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let shape = format!("s37_keep_the_best:alone:{}", folder.path().display());
    refused(&shape, 2, &["rank 0 is saving after 9 backwards", "rank 1 is in backward number 10"]);
}

#[test]
fn s38_a_file_that_one_rank_alone_can_see_is_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let shape = format!("s38_seen_by_one:{}", folder.path().display());
    refused(&shape, 2, &["rank 0 begins with epoch 2, rank 1 with epoch 0"]);
}

#[test]
fn s39_evaluation_sees_the_whole_set() {
    hold(&["s39_evaluation"]);
}

#[test]
fn s44_an_error_under_an_alias_of_result_is_an_error() {
    hold(&["s44_alias_of_a_result"]);
    let outcome = launched("s44_alias_of_a_result:fails", 2).run().failure();
    let launcher = &outcome.ranks[0];
    assert!(launcher.took < Duration::from_secs(20), "{}", outcome.tails());
    assert!(launcher.stderr.contains("alias: diverged at the end"), "{}", outcome.tails());
}

#[test]
fn p33_s40_s41_seeds() {
    hold(&["s40_manual_seed", "s41_rand_generators"]);
}

#[test]
fn s42_s43_s44_signatures_and_results() {
    let folder = tempfile::tempdir().unwrap();
    let results = format!("s44_results:{}", folder.path().display());
    hold(&["s42_main", "s43_methods", &results]);
}

#[test]
fn s44_a_panic_leaves_no_rank_waiting() {
    let outcome = launched("s44_endless:panic", 3).run().failure();
    let launcher = &outcome.ranks[0];
    assert!(launcher.took < Duration::from_secs(20), "{}", outcome.tails());
    assert!(launcher.stdout.contains("begun"), "{}", outcome.tails());
    assert!(launcher.stderr.contains("out of luck"), "{}", outcome.tails());
}

#[test]
fn s44_a_loop_without_end_is_ended_by_the_launcher() {
    // The shell sends the signal as soon as the ranks train, and ends as the launcher does.
    let script = r#"mkfifo "$3"; "$1" run -n 2 --exec "$2" -- shapes-loops s44_endless > "$3" &
        read -r line < "$3"; echo "$line"; sleep 0.5; kill -TERM $!; wait $!"#;
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("endless-{}", std::process::id());
    let job = Job::new("/bin/sh", "-c").arg(script).arg("sh").env("DDP_TEST_MARK", &mark);
    let job = job.arg(env!("CARGO_BIN_EXE_ddp-launch")).arg(env!("CARGO_BIN_EXE_ddp-worker"));
    let outcome = job.arg(folder.path().join("output")).limit(Duration::from_secs(60)).run();
    let outcome = outcome.failure();
    assert_eq!(outcome.ranks[0].stdout, "begun\n", "{}", outcome.tails());
    assert!(outcome.ranks[0].took < Duration::from_secs(20), "{}", outcome.tails());
    assert_eq!(left_over(&mark), Vec::<String>::new());
}
