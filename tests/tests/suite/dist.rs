//! Collectives that a program calls by itself.
use crate::worker;

fn over_all_transports(case: &str) {
    for (ranks, backend) in [(0, "auto"), (1, "auto"), (2, "shm"), (3, "shm"), (3, "gloo")] {
        let _ = worker("dist").arg(case).ranks(ranks).env("DDP_BACKEND", backend).run().success();
    }
}

#[test]
fn tensors_go_where_the_names_say_also_ragged_ones() {
    over_all_transports("tensors");
}

#[test]
fn long_tensors_arrive_to_the_last_byte() {
    over_all_transports("pieces");
}

#[test]
fn values_of_serde_arrive_as_they_were() {
    over_all_transports("objects");
}

#[test]
fn what_the_root_does_not_give_is_an_error_on_all_ranks() {
    for (case, said) in [("nothing", "gave no value"), ("too-few", "one value for each of 2 ranks")]
    {
        let outcome = worker("dist").arg(case).ranks(2).run().failure();
        for rank in &outcome.ranks {
            assert!(rank.stderr.contains(said), "{}", outcome.tails());
        }
    }
}

#[test]
fn p01_a_rank_that_is_elsewhere_is_named() {
    let another = "called collectives of another kind, or with tensors of other shapes";
    for (how, said) in [
        ("barrier", "rank 0 is in a collective after 0 backwards, rank 1 is in a barrier"),
        ("object", another),
        ("root", another),
        ("shape", another),
    ] {
        let outcome = worker("dist").arg("elsewhere").arg(how).ranks(2).run().failure();
        for rank in &outcome.ranks {
            assert!(rank.stderr.contains(said), "{how}\n{}", outcome.tails());
        }
    }
}
