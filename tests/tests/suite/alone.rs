//! One process: the annotated program and the plain one are told apart by nothing.
use tch::Tensor;

use crate::worker;

#[test]
fn the_output_is_the_same_byte_for_byte_and_no_socket_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let run = |which: &str, ranks| {
        let path = folder.path().join(format!("{which}-{ranks}.ot"));
        let outcome = worker("alone").arg(which).arg(&path).ranks(ranks).run().success();
        let rank = outcome.ranks.into_iter().next().unwrap();
        // tch writes the variables in the order of a hash map, so the bytes of a file differ from run to run.
        let mut weights = Tensor::load_multi(path).unwrap();
        weights.sort_by(|a, b| a.0.cmp(&b.0));
        (rank.stdout, rank.stderr, weights)
    };
    let plain = run("plain", 0);
    assert!(plain.0.starts_with("epoch 1: ") && plain.1.contains("to the error stream"));
    // Without a launcher, and as the only rank of one.
    for ranks in [0, 1] {
        let annotated = run("annotated", ranks);
        assert_eq!(annotated.0, plain.0);
        assert_eq!(annotated.1, plain.1);
        assert_eq!(annotated.2.len(), 4);
        assert_eq!(annotated.2, plain.2);
    }
}
