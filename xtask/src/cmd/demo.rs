//! `cargo xtask demo`: the same training program on one process and on two ranks.
//!
//! Every process gets the same number of threads, so that the comparison shows what ranks add.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step::render;
use crate::workspace::Workspace;
use crate::{programs::Programs, setup, style};

/// What counts as having learned: the share of held-out digits told rightly.
const WANTED_ACCURACY: f64 = 97.0;

/// Threads of a process, for libtorch.
const THREADS: &str = "OMP_NUM_THREADS";

/// How to show it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Ranks of the distributed run
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..))]
    ranks: u16,
    /// Arguments for the training program, as `-- --epochs 5`
    #[arg(last = true)]
    program: Vec<String>,
}

/// What a training program says of itself in its last lines.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    /// Percent.
    accuracy: f64,
    samples_per_second: f64,
}

/// Sets up, builds, trains twice, and compares.
///
/// # Errors
/// When a part fails, or a program learned less than it should.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    setup::provide(ws)?;
    let programs = Programs::build(ws, &["ddp-examples"], &["01-single", "02-distributed"])?;

    let threads = threads(args.ranks);
    style::heading(&format!("one process: examples/01-single, threads: {threads}"));
    let mut single = ws.command(programs.path("01-single")?);
    let single = train(single.args(&args.program).env(THREADS, &threads))?;

    let ranks = args.ranks.to_string();
    style::heading(&format!(
        "{ranks} ranks: examples/02-distributed, the same file plus two lines"
    ));
    let mut distributed = ws.cargo(["ddp", "run", "-n", &ranks, "--release"]);
    distributed.args(["-p", "ddp-examples", "--bin", "02-distributed"]);
    if !args.program.is_empty() {
        distributed.arg("--");
    }
    let distributed = train(distributed.args(&args.program).env(THREADS, &threads))?;

    println!("\n{}", table(single, distributed, args.ranks));
    for (name, report) in [("01-single", single), ("02-distributed", distributed)] {
        if args.program.is_empty() && report.accuracy < WANTED_ACCURACY {
            bail!("{name} tells {} % of the digits, below {WANTED_ACCURACY} %", report.accuracy);
        }
    }
    Ok(())
}

/// The caller's number of threads, else the cores shared out over the ranks.
fn threads(ranks: u16) -> String {
    std::env::var(THREADS).ok().filter(|set| !set.is_empty()).unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / usize::from(ranks)).max(1).to_string()
    })
}

/// Runs a training program, showing its output as it comes.
fn train(command: &mut Command) -> Result<Report> {
    let line = render(command);
    style::doing("Running", &line);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{line}` cannot be started"))?;
    let mut lines = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            let text = text.with_context(|| format!("the output of `{line}` cannot be read"))?;
            println!("{text}");
            lines.push(text);
        }
    }
    let status = child.wait().with_context(|| format!("`{line}` cannot be waited for"))?;
    if !status.success() {
        bail!("`{line}` failed ({status}); its words are above");
    }
    report(&lines).with_context(|| format!("`{line}` did not say how it did"))
}

/// Reads the two lines `accuracy X %` and `samples/s Y`.
fn report(lines: &[String]) -> Result<Report> {
    let value = |key: &str| {
        let after = lines.iter().rev().find_map(|line| line.strip_prefix(key));
        let word = after.and_then(|rest| rest.split_whitespace().next());
        let word = word.with_context(|| format!("there is no line `{key} ...`"))?;
        word.parse::<f64>().with_context(|| format!("`{key} {word}` holds no number"))
    };
    Ok(Report { accuracy: value("accuracy")?, samples_per_second: value("samples/s")? })
}

fn table(single: Report, distributed: Report, ranks: u16) -> String {
    let ratio = distributed.samples_per_second / single.samples_per_second;
    let row = |name: &str, report: Report, note: &str| {
        let Report { accuracy, samples_per_second } = report;
        format!("{name:<12}{accuracy:>8.2} %{samples_per_second:>13.0}{note}")
    };
    [
        format!("{:<12}{:>10}{:>13}", "", "accuracy", "samples/s"),
        row("1 process", single, ""),
        row(&format!("{ranks} ranks"), distributed, &format!("  x {ratio:.2}")),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_report_is_read_from_the_last_lines() {
        let output = lines("epoch 1\naccuracy 90.00 %\naccuracy 98.61 %\nsamples/s 12345");
        let wanted = Report { accuracy: 98.61, samples_per_second: 12345.0 };
        assert_eq!(report(&output).unwrap(), wanted);
    }

    #[test]
    fn a_missing_or_broken_line_is_named() {
        let missing = report(&lines("accuracy 98.61 %")).unwrap_err().to_string();
        assert!(missing.contains("samples/s"), "{missing}");
        let broken = report(&lines("accuracy NaN-ish\nsamples/s 1")).unwrap_err().to_string();
        assert!(broken.contains("accuracy NaN-ish"), "{broken}");
    }

    #[test]
    fn the_table_compares_the_two() {
        let single = Report { accuracy: 98.0, samples_per_second: 1000.0 };
        let distributed = Report { accuracy: 97.5, samples_per_second: 1800.0 };
        let wanted = "              accuracy    samples/s\n\
                      1 process      98.00 %         1000\n\
                      2 ranks        97.50 %         1800  x 1.80";
        assert_eq!(table(single, distributed, 2), wanted);
    }
}
