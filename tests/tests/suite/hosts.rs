//! Several hosts: ranks that believe to be on two or three of them, with shared memory inside a host and Gloo between.
use std::time::Duration;

use crate::worker;

/// Hosts and ranks on each.
const GRIDS: [(usize, usize); 2] = [(2, 2), (3, 2)];

#[test]
fn gradients_are_those_of_one_process() {
    for (hosts, each) in GRIDS {
        for (model, kind) in [("mlp", "f64"), ("conv", "f32")] {
            let job = worker("gradients").arg(model).arg(kind);
            let _ = job.ranks(hosts * each).ranks_per_host(each).run().success();
        }
    }
}

#[test]
fn the_transport_is_chosen_by_where_the_ranks_are() {
    let cases = [
        (4, 2, "auto", r#"over Some("shm+gloo")"#),
        (4, 2, "gloo", r#"over Some("gloo")"#),
        (3, 1, "auto", r#"over Some("gloo")"#),
        (2, 2, "auto", r#"over Some("shm")"#),
    ];
    for (ranks, each, backend, said) in cases {
        let job = worker("dist").arg("tensors").env("DDP_BACKEND", backend);
        let outcome = job.ranks(ranks).ranks_per_host(each).run().success();
        assert!(outcome.ranks[0].stdout.contains(said), "{}", outcome.tails());
    }
}

#[test]
fn what_the_ranks_do_beside_gradients_works_too() {
    let cases = [
        ("dist", "objects"),
        ("leaves", "branch-by-rank"),
        ("leaves", "unequal-weights"),
        ("leaves", "buffers"),
        ("votes", "figures"),
    ];
    for (case, arg) in cases {
        let _ = worker(case).arg(arg).ranks(4).ranks_per_host(2).run().success();
    }
}

/// One rank of the second host, which speaks for nobody.
#[test]
fn p26_a_rank_that_is_killed_on_another_host_is_noticed() {
    let outcome =
        worker("failures").arg("kill").arg("3").ranks(4).ranks_per_host(2).run().failure();
    for rank in &outcome.ranks {
        assert!(rank.took < Duration::from_secs(30), "{}", outcome.tails());
    }
}
