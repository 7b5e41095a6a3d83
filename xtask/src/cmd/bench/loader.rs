//! Samples a second through the data loader of this project and of PyTorch, in turn, on one data set.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::record::{LoaderRow, Record};
use super::{Bench, turn};
use crate::stats::quartiles;

const PEER: &str = "xtask/peers/loader_bench.py";
const PROGRAM: &str = "bench_loader";

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// The folder with the files of MNIST
    #[arg(value_name = "DIR", value_parser = folder)]
    folder: PathBuf,
    /// How often each configuration is run
    #[arg(long, default_value_t = REPEATS, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

const REPEATS: u32 = 3;

impl Args {
    /// The usual measurement, on the files in `data`.
    ///
    /// # Errors
    /// When that is no folder.
    pub(super) fn of(data: PathBuf) -> Result<Self> {
        Ok(Self { folder: folder(&data.to_string_lossy())?, repeats: REPEATS })
    }
}

/// The folder as seen from anywhere: the programs run in the workspace's root.
fn folder(text: &str) -> Result<PathBuf> {
    let found = PathBuf::from(text).canonicalize().ok().filter(|path| path.is_dir());
    found.with_context(|| format!("{text} is no folder that can be read"))
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

/// Measures all kinds and numbers of workers, both sides in turn.
///
/// # Errors
/// When a program fails, or the two sides did not give the same samples.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<LoaderRow>> {
    let row = |kind: &str, workers| LoaderRow {
        kind: kind.to_owned(),
        workers,
        pytorch_per_s: Vec::new(),
        ours_per_s: Vec::new(),
    };
    let of_kind = |kind: &(&str, &str)| WORKERS.map(|workers| row(kind.0, workers));
    let mut rows: Vec<LoaderRow> = KINDS.iter().flat_map(of_kind).collect();
    let mut first = None;
    for repeat in 1..=args.repeats {
        for row in &mut rows {
            let mut theirs = bench.ws.command(&bench.python);
            theirs.arg(PEER);
            let pytorch = run_once(bench, theirs, args, row)?;
            let ours = run_once(bench, bench.ws.command(bench.programs.path(PROGRAM)?), args, row)?;
            for measured in [&pytorch, &ours] {
                let facts = (measured.samples, measured.checksum);
                let wanted = *first.get_or_insert(facts);
                ensure!(facts == wanted, "{facts:?} samples and sum, and {wanted:?} elsewhere");
            }
            let ratio = format!("x {:.2}", ours.median_per_s / pytorch.median_per_s);
            let name = format!("{}, {} workers", row.kind, row.workers);
            turn("loader", repeat, args.repeats, &ratio, &name);
            row.pytorch_per_s.push(pytorch.median_per_s);
            row.ours_per_s.push(ours.median_per_s);
        }
    }
    Ok(rows)
}

fn run_once(
    bench: &Bench,
    mut command: std::process::Command,
    args: &Args,
    row: &LoaderRow,
) -> Result<Measured> {
    command.arg("--data").arg(&args.folder).args(["--kind", &row.kind]);
    // One measured pass a run: the repeats show the spread.
    command.args(["--workers", &row.workers.to_string(), "--passes", "1"]);
    bench.measure(command)
}

/// A Markdown table; x is our median over PyTorch's.
pub(super) fn table(record: &Record) -> String {
    let mut lines = vec![
        "## Samples a second through the data loader\n".to_owned(),
        "MNIST's 60,000 images as floats, shuffled, in batches of 64, on one process. PyTorch's workers are processes \
         and persistent, this project's are threads. *A batch at once* gathers by index, PyTorch's in `__getitems__`.\n"
            .to_owned(),
        "| data set | workers | runs | PyTorch | quartiles | this project | quartiles | x |".to_owned(),
        "| --- | ---: | ---: | ---: | --- | ---: | --- | ---: |".to_owned(),
    ];
    lines.extend(record.loader.iter().filter_map(|row| {
        let (theirs, ours) = (quartiles(&row.pytorch_per_s)?, quartiles(&row.ours_per_s)?);
        let name = KINDS.iter().find(|kind| kind.0 == row.kind).map_or("?", |kind| kind.1);
        Some(format!(
            "| {name} | {} | {} | {:.0} | {theirs} | {:.0} | {ours} | {:.2} |",
            row.workers,
            row.ours_per_s.len(),
            theirs.median,
            ours.median,
            ours.median / theirs.median
        ))
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::machine::Machine;

    #[test]
    fn a_row_has_both_medians_and_their_ratio() {
        let mut record = Record::new(Machine::sample());
        record.loader = vec![LoaderRow {
            kind: "at-once".to_owned(),
            workers: 2,
            pytorch_per_s: vec![90.0, 100.0, 500.0],
            ours_per_s: vec![400.0; 3],
        }];
        let text = table(&record);
        let line = "| a batch at once | 2 | 3 | 100 | 95.0-300 | 400 | 400-400 | 4.00 |";
        assert_eq!(text.lines().last(), Some(line));
    }
}
