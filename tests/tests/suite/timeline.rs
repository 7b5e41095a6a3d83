//! What `DDP_TRACE` writes: read as JSON, as the viewers do.
use std::path::Path;

use ddp_tests::Outcome;
use serde_json::Value;

use crate::worker;

fn events(path: &Path, outcome: &Outcome) -> Vec<Value> {
    let text = std::fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), outcome.tails()));
    let json: Value = serde_json::from_str(&text).expect("the viewers want JSON");
    json["traceEvents"].as_array().expect("a list of events").clone()
}

/// Start and end of a rank's events of that name, in microseconds.
fn spans(events: &[Value], rank: u64, name: &str) -> Vec<(f64, f64)> {
    events
        .iter()
        .filter(|event| event["ph"] == "X" && event["pid"] == rank && event["name"] == name)
        .map(|event| {
            let number = |field: &str| event[field].as_f64().expect("microseconds");
            (number("ts"), number("ts") + number("dur"))
        })
        .collect()
}

fn traced(path: &Path) -> ddp_tests::Job {
    worker("timeline").env("DDP_TRACE", path.to_str().expect("a plain path"))
}

#[test]
fn a_timeline_has_every_step_of_every_rank_on_one_clock() {
    for backend in ["shm", "gloo"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let outcome = traced(&path).env("DDP_BACKEND", backend).ranks(2).run().success();
        let events = events(&path, &outcome);
        for rank in 0..2 {
            for (name, count) in [("backward", 5), ("forward", 5), ("optimizer", 5)] {
                assert_eq!(spans(&events, rank, name).len(), count, "{backend}: {name} of {rank}");
            }
            // The sixth finds the end of the data.
            assert_eq!(spans(&events, rank, "data").len(), 6);
            let of = |phase: &str| {
                let all_reduce = |event: &&Value| event["ph"] == phase && event["pid"] == rank;
                events.iter().filter(all_reduce).count()
            };
            assert_eq!((of("b"), of("e"), of("i")), (5, 5, 5), "{backend}: all-reduces of {rank}");
        }
        // A backward ends on no rank before it has begun on all of them.
        let (own, other) = (spans(&events, 0, "backward"), spans(&events, 1, "backward"));
        for (own, other) in own.iter().zip(&other) {
            assert!(own.1 >= other.0 && other.1 >= own.0, "{backend}: {own:?} beside {other:?}");
        }
        let shown = &outcome.ranks[0].stderr;
        assert!(shown.contains("ddp: timeline: 5 backwards, "), "{shown}");
        assert!(outcome.ranks[1].stderr.is_empty(), "{}", outcome.tails());
    }
}

#[test]
fn a_rank_of_a_run_that_fails_writes_its_own_part() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = traced(&folder.path().join("run.json")).arg("3").ranks(2).run().failure();
    for rank in 0..2 {
        let events = events(&folder.path().join(format!("run.rank{rank}.json")), &outcome);
        assert!(spans(&events, rank, "backward").len() >= 3, "{}", outcome.tails());
    }
    assert!(!folder.path().join("run.json").exists());
}

#[test]
fn a_timeline_that_one_rank_alone_asks_for_is_no_reason_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let outcome = worker("timeline").arg("lonely").arg(&path).ranks(2).run().success();
    let shown = &outcome.ranks[0].stderr;
    assert!(shown.contains("no timeline: DDP_TRACE is not set on rank 1"), "{shown}");
    assert!(!path.exists());
}

#[test]
fn one_rank_has_no_timeline_and_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let outcome = traced(&path).ranks(1).run().success();
    let shown = &outcome.ranks[0].stderr;
    assert!(shown.contains("no timeline: one rank has nobody to wait for"), "{shown}");
    assert!(!path.exists());
}
