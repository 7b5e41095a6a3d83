//! A shuffled order that is too long to list: all its indices drawn, and the memory that takes.

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::record::{Record, SamplerRow};
use super::{Bench, turn};
use crate::stats::quartiles;

const PROGRAM: &str = "bench_loader";

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Indices to draw
    #[arg(long, default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    indices: u64,
    /// How often
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// The line that the program prints.
#[derive(Debug, Deserialize)]
struct Measured {
    samples: u64,
    per_s: f64,
    /// What the process has held at most, and by how much that grew while indices were drawn.
    peak_kib: u64,
    grown_kib: u64,
}

/// Draws all indices of an order; the program sees that each came once.
///
/// # Errors
/// When it fails.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<SamplerRow>> {
    let mut row = SamplerRow { indices: args.indices, ..SamplerRow::default() };
    for repeat in 1..=args.repeats {
        let mut command = bench.ws.command(bench.programs.path(PROGRAM)?);
        command.args(["--permute", &args.indices.to_string()]);
        let measured: Measured = bench.measure(command)?;
        ensure!(measured.samples == args.indices, "{} indices were drawn", measured.samples);
        let seconds = measured.samples as f64 / measured.per_s;
        turn("sampler", repeat, args.repeats, &format!("{seconds:.1} s"), "indices of an order");
        row.seconds.push(seconds);
        row.peak_mib.push(measured.peak_kib as f64 / 1024.0);
        row.grown_kib.push(measured.grown_kib as f64);
    }
    Ok(vec![row])
}

/// A Markdown table.
pub(super) fn table(record: &Record) -> String {
    let mut lines = vec![
        "## A shuffled order\n".to_owned(),
        "`FeistelSampler` on one thread. A list of the indices, as PyTorch's `RandomSampler` makes it, would take 8 bytes \
         each, and more as Python's numbers.\n"
            .to_owned(),
        "| indices | runs | s | ns each | peak of the process, MiB | grown meanwhile, KiB |".to_owned(),
        "| ---: | ---: | ---: | ---: | ---: | ---: |".to_owned(),
    ];
    lines.extend(record.sampler.iter().filter_map(|row| {
        let median = |values: &[f64]| quartiles(values).map(|values| values.median);
        let seconds = median(&row.seconds)?;
        Some(format!(
            "| {} | {} | {seconds:.1} | {:.1} | {:.0} | {:.0} |",
            row.indices,
            row.seconds.len(),
            1e9 * seconds / row.indices as f64,
            median(&row.peak_mib)?,
            median(&row.grown_kib)?
        ))
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::machine::Machine;

    #[test]
    fn time_is_told_for_all_and_for_each() {
        let mut record = Record::new(Machine::sample());
        record.sampler = vec![SamplerRow {
            indices: 1_000_000_000,
            seconds: vec![25.0],
            peak_mib: vec![101.4],
            grown_kib: vec![128.0],
        }];
        let line = "| 1000000000 | 1 | 25.0 | 25.0 | 101 | 128 |";
        assert_eq!(table(&record).lines().last(), Some(line));
    }
}
