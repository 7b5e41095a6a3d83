//! Samples a second through the data loader of this project and of PyTorch, in turn, on one data set.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::programs::Programs;
use crate::stats::quartiles;
use crate::step::render;
use crate::style;
use crate::workspace::Workspace;

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// The folder with the files of MNIST
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How often each configuration is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// Names of the kinds of data set, as both programs take them and as the table calls them.
const KINDS: [(&str, &str); 2] =
    [("samples", "a sample at a time"), ("at-once", "a batch at once")];
/// Numbers of workers.
const WORKERS: [u32; 3] = [0, 1, 2];

/// The line that a measured program prints.
#[derive(Debug, Deserialize, PartialEq)]
struct Measured {
    median_per_s: f64,
    samples: u64,
    /// Of the labels of a pass, to see that both sides gave the same samples.
    checksum: i64,
}

/// What is measured on both sides, and the runs' results.
struct Row {
    kind: usize,
    workers: u32,
    pytorch: Vec<f64>,
    ours: Vec<f64>,
}

/// Measures all kinds and numbers of workers, both sides in turn, and prints a table.
///
/// # Errors
/// When a program fails, or the two sides did not give the same samples.
pub(super) fn run(ws: &Workspace, args: &Args, python: &Path) -> Result<()> {
    // The programs may run elsewhere.
    let folder = args
        .folder
        .canonicalize()
        .with_context(|| format!("{} is no folder that can be read", args.folder.display()))?;
    let programs = Programs::build(ws, &["ddp-examples"], &["bench_loader"])?;
    let peer = "xtask/peers/loader_bench.py";
    let mut rows: Vec<Row> = (0..KINDS.len())
        .flat_map(|kind| {
            WORKERS.map(|workers| Row { kind, workers, pytorch: vec![], ours: vec![] })
        })
        .collect();
    let mut first = None;
    for repeat in 1..=args.repeats {
        for row in &mut rows {
            let mut theirs = ws.command(python);
            theirs.arg(peer);
            let pytorch = measure(theirs, &folder, row)?;
            let ours = measure(Command::new(programs.path("bench_loader")?), &folder, row)?;
            for measured in [&pytorch, &ours] {
                let facts = (measured.samples, measured.checksum);
                let wanted = *first.get_or_insert(facts);
                ensure!(
                    facts == wanted,
                    "{facts:?} samples and checksum, and {wanted:?} elsewhere"
                );
            }
            let what = format!("loader {repeat}/{}", args.repeats);
            let ratio = ours.median_per_s / pytorch.median_per_s;
            let (name, workers) = (KINDS[row.kind].1, row.workers);
            style::doing(&what, &format!("{name}, {workers} workers: {ratio:.2} times PyTorch"));
            row.pytorch.push(pytorch.median_per_s);
            row.ours.push(ours.median_per_s);
        }
    }
    println!("\n{}", table(&rows));
    Ok(())
}

fn measure(mut command: Command, folder: &PathBuf, row: &Row) -> Result<Measured> {
    command.arg("--data").arg(folder).args(["--kind", KINDS[row.kind].0]);
    command.args(["--workers", &row.workers.to_string()]).env("OMP_NUM_THREADS", "1");
    let line = render(&command);
    let output = command.output().with_context(|| format!("`{line}` cannot be started"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed ({}):\n{stderr}", output.status);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let measured = stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    measured.with_context(|| format!("`{line}` printed no measurement:\n{stderr}"))
}

/// A Markdown table; x is our median over PyTorch's.
fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        "| data set           | workers | PyTorch samples/s | here samples/s |     x |".to_owned(),
        "| ------------------ | ------: | ----------------: | -------------: | ----: |".to_owned(),
    ];
    lines.extend(rows.iter().filter_map(|row| {
        let (theirs, ours) = (quartiles(&row.pytorch)?.median, quartiles(&row.ours)?.median);
        let (name, workers, ratio) = (KINDS[row.kind].1, row.workers, ours / theirs);
        Some(format!(
            "| {name:<18} | {workers:>7} | {theirs:>17.0} | {ours:>14.0} | {ratio:>5.2} |"
        ))
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Row, table};

    #[test]
    fn a_row_has_both_medians_and_their_ratio() {
        let row =
            Row { kind: 1, workers: 2, pytorch: vec![90.0, 100.0, 500.0], ours: vec![400.0; 3] };
        let text = table(&[row]);
        let line = text.lines().last().unwrap();
        assert_eq!(
            line,
            "| a batch at once    |       2 |               100 |            400 |  4.00 |"
        );
    }
}
