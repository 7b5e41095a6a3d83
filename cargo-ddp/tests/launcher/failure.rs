//! A rank fails: who is named, what is passed on, and how long it takes (p26).

use std::time::Duration;

use ddp_env::failure::{FailureKind, FailureRecord};

use super::harness::{Done, script};

fn says(done: &Done, expected: &str) {
    assert!(done.stderr.contains(expected), "{expected:?} is missing in\n{}", done.stderr);
}

#[test]
fn p26_the_first_failure_is_named_last_with_its_code_and_its_words() {
    let body = "if [ $RANK = 1 ]; then echo no such column >&2; exit 7; fi
                sleep 0.3; echo connection reset >&2; exit 81";
    let done = script(3, "", body).run();
    assert_eq!(done.code, 7);
    let report = done.stderr.split("error: ").last().unwrap();
    let expected = "rank 1 of 3 failed first: exit code 7\n  the last lines of its stderr:\n  \
                    | no such column\n  rank";
    assert!(report.starts_with(expected), "{}", done.stderr);
    says(&done, "rank 0: exit code 81 (ended because another rank had failed)");
    assert!(done.took < Duration::from_secs(3), "{:?}", done.took);
}

#[test]
fn ranks_that_do_not_notice_are_stopped_within_ten_seconds() {
    let body = "[ $RANK != 1 ] || exit 3; trap '' TERM; while :; do sleep 1; done";
    let done = script(2, "", body).run();
    assert_eq!(done.code, 3);
    says(&done, "rank 0: stopped by the launcher");
    assert!(done.took < Duration::from_secs(10), "{:?}", done.took);
}

#[test]
fn a_rank_that_is_killed_is_named_with_the_signal() {
    let done = script(2, "", "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 0.2; exit 81").run();
    assert_eq!(done.code, 137);
    says(&done, "rank 1 of 2 failed first: killed by SIGKILL (often");
    let done = script(1, "", "kill -SEGV $$").run();
    assert_eq!(done.code, 139);
    says(&done, "rank 0 of 1 failed: killed by SIGSEGV");
}

fn record(rank: usize, kind: FailureKind, message: &str, place: Option<&str>) -> String {
    let record = FailureRecord {
        rank,
        kind,
        operation: "train".to_owned(),
        message: message.to_owned(),
        place: place.map(str::to_owned),
        unix_ms: u64::try_from(rank).unwrap(),
    };
    serde_json::to_string(&record).unwrap()
}

#[test]
fn what_a_rank_has_recorded_is_what_is_reported() {
    // Rank 0 ends first, but as a consequence of what rank 1 recorded before.
    let body = r#"if [ $RANK = 1 ]; then
        printf %s "$RECORD_1" > $DDP_REPORT_DIR/rank-1.json; echo noise >&2
        : > $DDP_REPORT_DIR/there; sleep 0.3; exit 1; fi
        while [ ! -e $DDP_REPORT_DIR/there ]; do sleep 0.02; done
        printf %s "$RECORD_0" > $DDP_REPORT_DIR/rank-0.json; exit 81"#;
    let done = script(2, "", body)
        .env("RECORD_0", record(0, FailureKind::Peer, "rank 1 is gone", None))
        .env("RECORD_1", record(1, FailureKind::Error, "bad batch\n3 of 9", Some("src/main.rs:9")))
        .run();
    assert_eq!(done.code, 1);
    says(
        &done,
        "rank 1 of 2 failed first: exit code 1\n  | bad batch\n  | 3 of 9\n  during: train\n  \
         at: src/main.rs:9\n  rank 0: exit code 81",
    );
}

#[test]
fn a_record_that_cannot_be_read_does_not_hide_the_failure() {
    let body = "echo '{' > $DDP_REPORT_DIR/rank-0.json; echo the reason >&2; exit 4";
    let done = script(1, "", body).run();
    assert_eq!(done.code, 4);
    says(&done, "warning: failure records: ");
    says(&done, "rank 0 of 1 failed: exit code 4\n  the last lines of its stderr:\n  | the reason");
}

#[test]
fn a_rank_that_ends_early_and_well_ends_nobody() {
    let done = script(2, "", "[ $RANK = 0 ] || exit 0; sleep 0.5; echo late").run();
    assert_eq!((done.code, done.stdout().as_str(), done.stderr.as_str()), (0, "late\n", ""));
}

#[test]
fn a_program_that_cannot_be_started_is_told() {
    let done = super::harness::launcher("run -n 2 --exec /no/such/program").run();
    assert_eq!(done.code, 127);
    says(&done, "error: cannot start rank 0 (/no/such/program): No such file");
}
