//! Communication hooks.
use crate::truth::{output, script};
use crate::worker;

#[test]
fn compressed_training_follows_pytorchs_hooks() {
    let folder = tempfile::tempdir().unwrap();
    let truth = folder.path().join("truth.npz");
    output(script("hooks.py").arg("--output").arg(&truth));
    for backend in ["shm", "gloo"] {
        let job = worker("hooks").arg("truth").arg(&truth).env("DDP_BACKEND", backend);
        let _ = job.ranks(2).run().success();
    }
}

#[test]
fn a_hook_of_the_programs_own_averages() {
    for ranks in [2, 3] {
        let _ = worker("hooks").arg("own").ranks(ranks).run().success();
    }
}

#[test]
fn hooks_that_differ_between_ranks_are_named() {
    let outcome = worker("hooks").arg("different").ranks(2).run().failure();
    let text = "rank 0 registers the hook `bf16`, rank 1 `powersgd rank 1";
    assert!(outcome.ranks[0].stderr.contains(text), "{}", outcome.tails());
}

#[test]
fn a_joined_rank_takes_part_in_a_hook() {
    let _ = worker("hooks").arg("with-join").ranks(3).run().success();
}
