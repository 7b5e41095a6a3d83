//! The checks themselves: each a run of the worker, of two ranks of it, or of PyTorch.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::step::render;
use crate::style;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(90);
/// The limit of a wait in the run with a collective that hangs.
const HANG_LIMIT: &str = "5";

/// What a run must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// It ends well.
    Success,
    /// It ends by itself, with this among what it says.
    Failure(&'static str),
    /// It prints the time of a step.
    Time,
}

/// One run, and what it is there for.
struct Check {
    what: &'static str,
    command: Command,
    expect: Expect,
}

/// A line of the table.
struct Row {
    what: &'static str,
    outcome: Result<Option<f64>>,
    took: Duration,
}

/// The last line that a timed program prints.
#[derive(Deserialize)]
struct Timed {
    median_ms: f64,
}

/// Runs all checks and prints a table.
///
/// # Errors
/// When a check fails, after the table.
pub(super) fn run(tools: &Tools) -> Result<()> {
    let rows: Vec<Row> = tools.checks().into_iter().map(carry_out).collect();
    println!("{}", table(&rows));
    let failed = rows.iter().filter(|row| row.outcome.is_err()).count();
    for row in &rows {
        if let Err(error) = &row.outcome {
            style::failure(error);
        }
    }
    if failed > 0 {
        bail!("{failed} of {} checks on the GPU failed", rows.len());
    }
    Ok(())
}

/// What the checks are made of.
pub(super) struct Tools {
    /// Where they are run.
    pub(super) root: PathBuf,
    pub(super) worker: PathBuf,
    pub(super) launcher: PathBuf,
    /// A python that has PyTorch.
    pub(super) python: PathBuf,
    /// The training steps by PyTorch.
    pub(super) peer: PathBuf,
    /// The libtorch that the worker was built for.
    pub(super) libtorch: PathBuf,
}

impl Tools {
    fn checks(&self) -> Vec<Check> {
        let success = Expect::Success;
        let mut hang = self.two_ranks(&["hang"]);
        hang.env("DDP_TIMEOUT", HANG_LIMIT);
        let hang_text = "no answer from the other ranks within 5 s";
        let check = |what, command, expect| Check { what, command, expect };
        vec![
            check("gradients, one rank", self.alone(&["gradients"]), success),
            check("gradients, two ranks", self.two_ranks(&["gradients"]), success),
            check("synchronised BatchNorm, one rank", self.alone(&["batch-norm"]), success),
            check("synchronised BatchNorm, two ranks", self.two_ranks(&["batch-norm"]), success),
            check("streams under load, two ranks", self.two_ranks(&["race", "300"]), success),
            check("a collective that hangs", hang, Expect::Failure(hang_text)),
            check("step: plain tch", self.alone(&["step", "plain"]), Expect::Time),
            check("step: with the attribute", self.alone(&["step", "ours"]), Expect::Time),
            check("step: plain PyTorch", self.pytorch("plain"), Expect::Time),
            check("step: PyTorch DDP, one rank", self.pytorch("ddp"), Expect::Time),
        ]
    }

    fn command(&self, program: &PathBuf) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("LD_LIBRARY_PATH", self.libtorch.join("lib"));
        command
    }

    /// The worker by itself. The linker has dropped libtorch's CUDA half from it, as from most programs.
    fn alone(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.worker);
        command.arg("gpu").args(args);
        command.env("LD_PRELOAD", self.libtorch.join("lib/libtorch_cuda.so"));
        command
    }

    /// Two ranks on one GPU.
    fn two_ranks(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.launcher);
        command.args(["run", "-n", "2", "--share-gpus", "--exec"]);
        command.arg(&self.worker).args(["--", "gpu"]).args(args);
        command.env("DDP_BACKEND", "nccl");
        command
    }

    fn pytorch(&self, kind: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.current_dir(&self.root).arg(&self.peer).arg(kind);
        command
    }
}

fn carry_out(check: Check) -> Row {
    style::doing("Checking", &format!("{}: {}", check.what, render(&check.command)));
    let started = Instant::now();
    let outcome = ended(check.command, check.expect).with_context(|| check.what.to_owned());
    Row { what: check.what, outcome, took: started.elapsed() }
}

/// Runs a command to its end or to the limit, and compares with what is expected.
fn ended(mut command: Command, expect: Expect) -> Result<Option<f64>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("output");
    let file = std::fs::File::create(&path)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child =
        command.spawn().with_context(|| format!("`{}` cannot be started", render(&command)))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    judged(expect, status.map(|status| status.success()), &text)
}

/// `success`: how the run ended; nothing when it ran into the limit. `text`: all that it said.
fn judged(expect: Expect, success: Option<bool>, text: &str) -> Result<Option<f64>> {
    let timed = || text.lines().rev().find_map(|line| serde_json::from_str::<Timed>(line).ok());
    match (expect, success) {
        (_, None) => bail!("it did not end within {} s:\n{text}", LIMIT.as_secs()),
        (Expect::Success, Some(true)) => Ok(None),
        (Expect::Failure(words), Some(false)) if text.contains(words) => Ok(None),
        (Expect::Failure(words), _) => bail!("it did not fail with \"{words}\":\n{text}"),
        (Expect::Time, Some(true)) => match timed() {
            Some(timed) => Ok(Some(timed.median_ms)),
            None => bail!("it printed no time:\n{text}"),
        },
        (_, Some(false)) => bail!("it failed:\n{text}"),
    }
}

/// A Markdown table; x is the time of plain tch over the row's.
fn table(rows: &[Row]) -> String {
    let time = |row: &Row| row.outcome.as_ref().ok().copied().flatten();
    let base = rows.iter().find_map(time);
    let mut lines = vec![
        "| on one GPU                        | result |  step ms |     x | took s |".to_owned(),
        "| --------------------------------- | ------ | -------: | ----: | -----: |".to_owned(),
    ];
    lines.extend(rows.iter().map(|row| {
        let result = if row.outcome.is_ok() { "ok" } else { "FAILED" };
        let number = |value: Option<f64>, digits| {
            value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let ratio = base.zip(time(row)).map(|(base, own)| base / own);
        format!(
            "| {:<33} | {result:<6} | {:>8} | {:>5} | {:>6.1} |",
            row.what,
            number(time(row), 3),
            number(ratio, 2),
            row.took.as_secs_f64()
        )
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_judged_by_its_end_and_its_words() {
        let hang = Expect::Failure("no answer");
        assert!(judged(hang, Some(false), "rank 0: no answer").is_ok());
        assert!(judged(hang, Some(true), "rank 0: no answer").is_err());
        assert!(judged(hang, Some(false), "a panic").is_err());
        assert!(judged(Expect::Success, None, "").unwrap_err().to_string().contains("90 s"));
        assert!(judged(Expect::Success, Some(false), "").is_err());
        let text = "ddp: a note\n{\"median_ms\": 1.25}\n";
        assert_eq!(judged(Expect::Time, Some(true), text).unwrap(), Some(1.25));
        assert!(judged(Expect::Time, Some(true), "nothing").is_err());
    }

    #[test]
    fn the_table_compares_with_plain_tch() {
        let row = |what, outcome| Row { what, outcome, took: Duration::from_millis(1500) };
        let rows = [
            row("gradients, one rank", Ok(None)),
            row("step: plain tch", Ok(Some(2.0))),
            row("step: with the attribute", Ok(Some(4.0))),
            row("step: plain PyTorch", Err(anyhow::anyhow!("no torch"))),
        ];
        let text = table(&rows);
        assert!(text.contains(
            "| gradients, one rank               | ok     |          |       |    1.5 |"
        ));
        assert!(text.contains(
            "| step: with the attribute          | ok     |    4.000 |  0.50 |    1.5 |"
        ));
        assert!(text.contains("| step: plain PyTorch               | FAILED |"));
    }
}
