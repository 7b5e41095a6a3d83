//! Loss scaling for mixed precision.
use crate::truth::{output, script};
use crate::worker;

#[test]
fn scales_and_steps_are_those_of_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.json");
    std::fs::write(&path, output(&mut script("grad_scaler.py"))).unwrap();
    let outcome = worker("grad-scaler").arg("follows").arg(path).run().success();
    assert_eq!(outcome.ranks[0].stdout.matches("iteration ").count(), 48, "{}", outcome.tails());
}

#[test]
fn an_infinity_on_one_rank_keeps_all_from_the_step() {
    for ranks in [1, 2, 3] {
        let _ = worker("grad-scaler").arg("agreed").ranks(ranks).run().success();
    }
}
