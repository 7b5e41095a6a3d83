//! What of the ranks' output is shown, and how.

use std::fs;

use super::harness::{launcher, script};

#[test]
fn rank_0_is_shown_as_it_is_and_the_others_by_line_with_their_rank() {
    let done = script(2, "", "echo out $RANK; echo err $RANK >&2").run();
    let mut lines: Vec<_> = done.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[rank 1] out 1", "out 0"]);
    let mut lines: Vec<_> = done.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank 1] err 1", "err 0"]);
}

#[test]
fn a_progress_bar_of_rank_0_survives_unchanged() {
    let done = script(1, "", r"printf '10%%\r20%%\r\033[1mdone'; printf '5%%\r6%%' >&2").run();
    assert_eq!(done.stdout, b"10%\r20%\r\x1b[1mdone");
    assert_eq!(done.stderr, "5%\r6%");
}

#[test]
fn output_that_is_no_utf8_and_has_no_line_end_survives() {
    let done = script(2, "--output prefixed", r"[ $RANK = 0 ] || printf 'a\377b'").run();
    assert_eq!(done.stdout, b"[rank 1] a\xffb\n");
}

#[test]
fn lines_of_many_ranks_are_never_torn() {
    let long = "x".repeat(300);
    let count = "i=0; while [ $i -lt 500 ]; do printf \"$RANK \"; echo $LONG $i; i=$((i+1)); done";
    let done = script(4, "--output prefixed", count).env("LONG", &long).run();
    let mut next = [0; 4];
    for line in done.stdout().lines() {
        let rank: usize = line.strip_prefix("[rank ").unwrap()[..1].parse().unwrap();
        assert_eq!(line, format!("[rank {rank}] {rank} {long} {}", next[rank]));
        next[rank] += 1;
    }
    assert_eq!(next, [500; 4]);
}

#[test]
fn main_shows_rank_0_only_and_logs_have_everything() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("a/b");
    let options = format!("--output main --log-dir {}", logs.display());
    let done = script(2, &options, "echo out $RANK; echo err $RANK >&2").run();
    assert_eq!((done.stdout().as_str(), done.stderr.as_str()), ("out 0\n", "err 0\n"));
    for rank in 0..2 {
        let text = fs::read_to_string(logs.join(format!("rank-{rank}.log"))).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, [format!("err {rank}"), format!("out {rank}")]);
    }
}

#[test]
fn a_log_folder_that_cannot_be_made_is_told_before_anything_starts() {
    let done = script(1, "--log-dir /proc/no", "echo started").run();
    assert_eq!((done.code, done.stdout().as_str()), (1, ""));
    assert!(done.stderr.starts_with("error: cannot create /proc/no: "), "{}", done.stderr);
}

#[test]
fn input_goes_to_rank_0() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_cargo-ddp"))
        .args(["run", "-n", "2", "--exec", "/bin/cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"hello\n"[..]));
}

#[test]
fn help_explains_the_essentials() {
    let done = launcher("ddp run --help").run();
    assert_eq!(done.code, 0);
    for word in ["--nproc-per-node", "--master-addr", "--grace", "Ctrl-C", "Exit status", "--bin"] {
        assert!(done.stdout().contains(word), "{word} is missing in\n{}", done.stdout());
    }
}
