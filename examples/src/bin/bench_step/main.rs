//! The peer of `xtask/peers/ddp_step.py`: the same models and training steps, timed.
//!
//! The main rank prints one JSON line: `{"model", "median_ms", "steps", "parameters", "start_s", "peak_mib"}`. A step is
//! forward, zero_grad, backward (with the all-reduce of the gradients where there are ranks) and SGD's step, on one batch
//! a rank that stays the same. `start_s` is from the time in BENCH_STARTED (seconds since 1970) to the end of the first
//! step, `peak_mib` the largest resident memory of a rank (VmHWM), the mean over the ranks. `--plain` trains without the
//! attribute, `--in-step` with ranks that wait for each other in each backward and exchange no gradient; `--alternate` measures
//! what the attribute, or a timeline, adds to a step.

mod alternate;
mod models;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use ddp_runtime::{distributed, ignore, mean};
use serde_json::json;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use models::Model;

#[derive(Parser)]
struct Args {
    #[arg(long)]
    model: Model,
    /// About how long the measured steps may take together, in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Steps before the measured ones
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    warmup: u32,
    /// Leave out the attribute
    #[arg(long)]
    plain: bool,
    /// Leave out the gradients' exchange
    #[arg(long, conflicts_with = "plain")]
    in_step: bool,
    /// Measure steps with and without this in turn
    #[arg(long, conflicts_with_all = ["plain", "in_step"])]
    alternate: Option<alternate::What>,
}

/// The fewest and the most measured steps.
const STEPS: (u32, u32) = (8, 100);

/// The same function with and without the attribute.
macro_rules! training {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        fn $name(args: &Args) -> Result<()> {
            let vs = nn::VarStore::new(Device::Cpu);
            let subject = args.model.build(vs.root());
            if args.in_step {
                vs.trainable_variables().iter().for_each(ignore);
            }
            let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
            let mut step = || {
                let start = Instant::now();
                let loss = subject.net.forward(&subject.xs).cross_entropy_for_logits(&subject.ys);
                opt.backward_step(&loss);
                1000.0 * start.elapsed().as_secs_f64()
            };
            let (mut last, mut first) = (0.0, None);
            for _ in 0..args.warmup {
                last = step();
                first = first.or_else(since_start);
            }
            // The ranks' own figures differ, and all take as many steps.
            let steps = (1000.0 * args.seconds / mean(last)) as u32;
            let mut times = Vec::new();
            for _ in 0..steps.clamp(STEPS.0, STEPS.1) {
                times.push(step());
            }
            let parameters: usize = vs.trainable_variables().iter().map(Tensor::numel).sum();
            let model = args.model.to_possible_value().map(|value| value.get_name().to_owned());
            let peak = mean(peak_mib()?);
            let facts = json!({
                "model": model, "median_ms": median(&mut times), "steps": times.len(), "parameters": parameters,
                "start_s": first, "peak_mib": peak,
            });
            println!("{facts}");
            Ok(())
        }
    };
}

training!(plain);
training!(
    #[distributed]
    train
);

/// Seconds since whoever measures has started the job, if somebody does.
fn since_start() -> Option<f64> {
    let started: f64 = std::env::var("BENCH_STARTED").ok()?.parse().ok()?;
    Some(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64() - started)
}

/// The largest resident memory that this process has had, in MiB.
fn peak_mib() -> Result<f64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 =
        line.trim().trim_end_matches(" kB").parse().with_context(|| format!("VmHWM:{line}"))?;
    Ok(kib / 1024.0)
}

/// The middle of the values, or of the two in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let (below, above) = ((values.len() - 1) / 2, values.len() / 2);
    (values[below] + values[above]) / 2.0
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.alternate {
        Some(what) => alternate::run(what, &args),
        None if args.plain => plain(&args),
        None => train(&args),
    }
}
