//! However a job ends, nothing of it is left (p24, p25). `finish` of the harness looks for it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{Running, script, wait_for_ready, wait_until};

/// A rank with a helper in its process group and one in a session of its own, all deaf to SIGTERM.
const STUBBORN: &str = "trap '' TERM INT HUP
     sleep 1000 & setsid sleep 1000 & echo $DDP_REPORT_DIR > $DIR/report
     : > $DIR/$RANK.ready; while :; do sleep 1; done";

fn stubborn(options: &str) -> (Running, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let running = script(2, options, STUBBORN).env("DIR", dir.path()).start();
    wait_for_ready(dir.path(), 2);
    (running, dir)
}

#[test]
fn p25_nothing_outlives_a_launcher_that_is_killed() {
    let (running, dir) = stubborn("");
    // Launcher, keeper, two ranks with a sleep in the loop and two helpers each.
    assert!(running.alive().len() >= 8, "{:?}", running.alive());
    running.signal(Signal::KILL);
    // Those that are left end after it, not with it.
    let gone = wait_until(Duration::from_secs(5), || running.alive().is_empty());
    assert!(gone, "{:?}", running.alive());
    let report = fs::read_to_string(dir.path().join("report")).unwrap();
    let report = PathBuf::from(report.trim());
    assert!(wait_until(Duration::from_secs(5), || !report.exists()), "{report:?} is left");
    assert_eq!(running.finish().code, 137);
}

#[test]
fn p25_ranks_end_with_the_launcher_even_without_its_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let body = ": > $DIR/$RANK.ready; exec sleep 1000";
    // Nobody is left to remove the report folder; the test's own folder has it.
    let job = script(2, "", body).env("DIR", dir.path()).env("TMPDIR", dir.path());
    let running = job.start();
    wait_for_ready(dir.path(), 2);
    rustix::process::kill_process(running.keeper(), Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    let gone = wait_until(Duration::from_secs(5), || running.alive().is_empty());
    assert!(gone, "{:?}", running.alive());
}

#[test]
fn p25_a_helper_that_hides_its_environment_is_found_by_its_group() {
    for killed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let wait = if killed { "sleep 1000" } else { ":" };
        let body = format!(
            "env -i sleep 1000 & echo $! > $DIR/helper.$RANK; : > $DIR/$RANK.ready; {wait}"
        );
        let running = script(2, "", &body).env("DIR", dir.path()).start();
        wait_for_ready(dir.path(), 2);
        if killed {
            running.signal(Signal::KILL);
        }
        assert!(wait_until(Duration::from_secs(5), || running.alive().is_empty()));
        for rank in 0..2 {
            let pid = fs::read_to_string(dir.path().join(format!("helper.{rank}"))).unwrap();
            let gone = || has_ended(pid.trim());
            assert!(wait_until(Duration::from_secs(5), gone), "{} is left", pid.trim());
        }
    }
}

/// Whether there is no process `pid`, or only what a parent has yet to collect of it.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
}

#[test]
fn p24_ranks_that_save_and_leave_in_time_make_a_good_end() {
    let dir = tempfile::tempdir().unwrap();
    let body = "trap 'sleep 0.5; : > $DIR/$RANK.saved; exit 0' TERM
                : > $DIR/$RANK.ready; while :; do sleep 0.1; done";
    let running = script(2, "", body).env("DIR", dir.path()).start();
    wait_for_ready(dir.path(), 2);
    running.signal(Signal::TERM);
    // A scheduler may say it twice.
    running.signal(Signal::TERM);
    let done = running.finish();
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(dir.path().join("0.saved").exists() && dir.path().join("1.saved").exists());
    assert_eq!(done.stderr, "stopped: SIGTERM\n");
}

#[test]
fn p24_ranks_that_do_not_leave_are_killed_after_the_grace() {
    let (running, _dir) = stubborn("--grace 1");
    running.signal(Signal::TERM);
    let done = running.finish();
    assert_eq!(done.code, 143, "{}", done.stderr);
    assert!(done.took > Duration::from_secs(1) && done.took < Duration::from_secs(20));
}

#[test]
fn p25_the_second_interrupt_ends_everything_at_once() {
    let (running, _dir) = stubborn("");
    running.signal(Signal::INT);
    // The kernel makes one of two signals of a kind that are pending, so a busy launcher needs the time to see the first.
    std::thread::sleep(Duration::from_secs(1));
    assert!(running.alive().len() >= 8, "the first one leaves time: {:?}", running.alive());
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!((done.code, done.stderr.as_str()), (130, "stopped: SIGINT\n"));
    assert!(done.took < Duration::from_secs(20), "{:?}", done.took);
}

#[test]
fn p25_helpers_of_ranks_do_not_survive_a_good_end_or_a_failure() {
    for code in [0, 5] {
        let body = format!("sleep 1000 & setsid sleep 1000 & sleep 0.2; exit {code}");
        let done = script(2, "", &body).run();
        assert_eq!(done.code, code, "{}", done.stderr);
        // The helpers hold the output open; that must not hold the launcher.
        assert!(done.took < Duration::from_secs(20), "{:?}", done.took);
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    // As under nohup: the shell ignores SIGHUP and becomes the launcher.
    let dir = tempfile::tempdir().unwrap();
    let inner = ": > $DIR/0.ready; sleep 0.5";
    let outer = "trap '' HUP; exec \"$LAUNCHER\" run -n 1 --exec /bin/sh -- -c \"$INNER\"";
    let job = script(1, "", outer).env("LAUNCHER", env!("CARGO_BIN_EXE_cargo-ddp"));
    let running = job.env("INNER", inner).env("DIR", dir.path()).start();
    wait_for_ready(dir.path(), 1);
    let rank = children_of(running.pid());
    for pid in rank {
        rustix::process::kill_process(pid, Signal::HUP).unwrap();
    }
    assert_eq!(running.finish().code, 0);
}

fn children_of(pid: rustix::process::Pid) -> Vec<rustix::process::Pid> {
    let pid = pid.as_raw_nonzero();
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.extend(pids.filter_map(rustix::process::Pid::from_raw));
    }
    children
}
