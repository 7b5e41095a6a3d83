//! The shapes s01 to s22 of real training code, each on one, two and three ranks.
use crate::worker;

/// On any number of ranks the shapes find what they require.
#[track_caller]
fn hold(names: &[&str]) {
    for ranks in [1, 2, 3] {
        let job = names.iter().fold(worker("shapes-steps"), |job, name| job.arg(name));
        let _ = job.ranks(ranks).run().success();
    }
}

#[test]
fn s01_s02_s03_s04_s05_places_of_the_step() {
    hold(&["s01_all_in_one", "s02_helper", "s03_method", "s04_hidden", "s05_loop_of_its_own"]);
}

#[test]
fn s06_s07_s08_s09_forms_of_the_step() {
    hold(&["s06_one_call", "s07_by_hand", "s08_accumulation", "s09_changed_gradients"]);
}

#[test]
fn s10_s11_s12_own_optimizers_raw_leaves_losses() {
    hold(&["s10_own_optimizers", "s11_raw_leaves", "s12_losses"]);
}
