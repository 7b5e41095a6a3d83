//! The all-reduce alone, beside what the memory can move.

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::configuration::{self, Configuration};
use super::record::ReduceRow;
use super::{Bench, turn};

const PEER: &str = "xtask/peers/ddp_all_reduce.py";
const PROGRAM: &str = "bench_all_reduce";

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = SIZES)]
    sizes: Vec<u64>,
    /// Numbers of ranks
    #[arg(short = 'n', long, value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u32).range(2..))]
    ranks: Vec<u32>,
    /// How often each configuration is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// About how long a run measures each size, in seconds; at least 5 rounds and at most 500 are measured
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
}

/// By fours, and a bucket of PyTorch's size with the gradient that makes it full.
const SIZES: [u64; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    26 << 20,
    64 << 20,
    256 << 20,
];

/// The line that a measured program prints.
#[derive(Debug, Deserialize)]
struct Measured {
    sizes: Vec<Size>,
    /// What all ranks together move when they copy, in 10^9 bytes a second, read and written.
    copy_gb_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Size {
    bytes: u64,
    median_us: f64,
}

/// Every configuration on every number of ranks, in turn.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<ReduceRow>> {
    let mut rows = Vec::new();
    for &ranks in &args.ranks {
        let configurations = configuration::ALL_REDUCE;
        let row =
            |configuration: &Configuration| ReduceRow::new(ranks, configuration.name, &args.sizes);
        let mut own: Vec<ReduceRow> = configurations.iter().map(row).collect();
        for repeat in 1..=args.repeats {
            for (configuration, row) in configurations.iter().zip(&mut own) {
                let measured = run_once(bench, args, ranks, configuration)?;
                let largest = measured.sizes.last().map_or(0.0, |size| size.median_us / 1000.0);
                let figure = format!("{largest:.2} ms");
                turn(
                    &format!("reduce x{ranks}"),
                    repeat,
                    args.repeats,
                    &figure,
                    row.configuration.as_str(),
                );
                for (times, size) in row.times_us.iter_mut().zip(&measured.sizes) {
                    times.push(size.median_us);
                }
                row.copy_gb_s.extend(measured.copy_gb_s);
            }
        }
        rows.extend(own);
    }
    Ok(rows)
}

fn run_once(
    bench: &Bench,
    args: &Args,
    ranks: u32,
    configuration: &Configuration,
) -> Result<Measured> {
    let peer = (bench.python.as_path(), PEER);
    let mut command = configuration.command(&bench.ws, peer, (&bench.programs, PROGRAM), ranks)?;
    let sizes: Vec<String> = args.sizes.iter().map(u64::to_string).collect();
    command.args(["--sizes", &sizes.join(",")]);
    command.args(["--seconds", &args.seconds.to_string()]);
    let measured: Measured = bench.measure(command)?;
    let found = measured.sizes.iter().map(|size| size.bytes);
    ensure!(found.eq(args.sizes.iter().copied()), "{} measured other sizes", configuration.name);
    Ok(measured)
}
