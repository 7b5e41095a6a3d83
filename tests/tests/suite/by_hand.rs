//! All that the attribute inserts can be written by hand.
use crate::worker;

#[test]
fn by_hand_it_is_number_for_number_what_the_attribute_does() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let job = worker("by-hand").arg("same-numbers").arg(folder.path());
        let _ = job.ranks(ranks).run().success();
    }
}

#[test]
fn the_steps_of_pytorchs_tutorial() {
    for ranks in [1, 2, 3] {
        let _ = worker("by-hand").arg("tutorial").ranks(ranks).run().success();
    }
}
