//! Training steps: time of a step, time from the start to the first one, peak memory.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use super::configuration::{self, Configuration};
use super::record::StepRow;
use super::{Bench, turn};

const PEER: &str = "xtask/peers/ddp_step.py";
const PROGRAM: &str = "bench_step";

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Models to measure
    #[arg(long = "model", value_enum, value_delimiter = ',', default_values_t = Model::value_variants().to_vec())]
    models: Vec<Model>,
    /// Numbers of ranks
    #[arg(short = 'n', long, value_delimiter = ',', default_values_t = RANKS, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Vec<u32>,
    /// How often each configuration is run
    #[arg(long, default_value_t = REPEATS, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Measured steps of a run
    #[arg(long, default_value_t = STEPS, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before the measured ones
    #[arg(long, default_value_t = WARMUP)]
    warmup: u32,
}

const RANKS: [u32; 3] = [1, 2, 4];
const REPEATS: u32 = 5;
const STEPS: u32 = 30;
const WARMUP: u32 = 5;

impl Default for Args {
    fn default() -> Self {
        Self {
            models: Model::value_variants().to_vec(),
            ranks: RANKS.to_vec(),
            repeats: REPEATS,
            steps: STEPS,
            warmup: WARMUP,
        }
    }
}

/// The models that both sides build alike.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Two convolutions and two linear layers on 28x28 images, batch 256 a rank
    Conv,
    /// 26.8 million parameters in 8 linear layers, batch 64 a rank
    Mlp,
    /// 200 linear layers of 64x64, batch 32 a rank
    Layers,
    /// 4 transformer blocks of width 256, 8 sequences of 64 tokens a rank
    Transformer,
    /// An embedding of 200,000 x 64, averaged over 16 tokens, batch 256 a rank
    Embedding,
}

impl Model {
    /// The name that both programs take.
    fn name(self) -> &'static str {
        match self {
            Self::Conv => "conv",
            Self::Mlp => "mlp",
            Self::Layers => "layers",
            Self::Transformer => "transformer",
            Self::Embedding => "embedding",
        }
    }
}

/// The line that a measured program prints.
#[derive(Debug, Deserialize, PartialEq)]
struct Measured {
    /// Milliseconds a step, the median of a run.
    median_ms: f64,
    steps: u32,
    /// Trainable numbers of the model, to see that both sides built the same.
    parameters: u64,
    /// From the start of the job to the end of the first step.
    start_s: f64,
    /// The largest resident memory of a rank, the mean over the ranks.
    peak_mib: f64,
}

/// Every model on every number of ranks.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<Vec<StepRow>> {
    let mut rows = Vec::new();
    for &model in &args.models {
        for &ranks in &args.ranks {
            rows.extend(compare(bench, args, model, ranks)?);
        }
    }
    Ok(rows)
}

/// Runs every configuration once, then again, so that a change of the machine's load meets all alike.
fn compare(bench: &Bench, args: &Args, model: Model, ranks: u32) -> Result<Vec<StepRow>> {
    let configurations = configuration::steps(ranks);
    let row = |configuration: &Configuration| StepRow::new(model.name(), ranks, configuration.name);
    let mut rows: Vec<StepRow> = configurations.iter().map(row).collect();
    for repeat in 1..=args.repeats {
        for (configuration, row) in configurations.iter().zip(&mut rows) {
            let measured = run_once(bench, args, model, ranks, configuration)?;
            let what = format!("{} x{ranks}", model.name());
            let figure = format!("{:.2} ms", measured.median_ms);
            turn(&what, repeat, args.repeats, &figure, configuration.name);
            row.parameters = measured.parameters;
            row.step_ms.push(measured.median_ms);
            row.start_s.push(measured.start_s);
            row.peak_mib.push(measured.peak_mib);
        }
        let first = rows[0].parameters;
        for row in &rows {
            ensure!(
                row.parameters == first,
                "{}: {} parameters, and {first} elsewhere: not the same model",
                row.configuration,
                row.parameters
            );
        }
    }
    Ok(rows)
}

fn run_once(
    bench: &Bench,
    args: &Args,
    model: Model,
    ranks: u32,
    configuration: &Configuration,
) -> Result<Measured> {
    let peer = (bench.python.as_path(), PEER);
    let mut command = configuration.command(&bench.ws, peer, (&bench.programs, PROGRAM), ranks)?;
    command.args(["--model", model.name()]);
    command.args(["--steps", &args.steps.to_string()]);
    command.args(["--warmup", &args.warmup.to_string()]);
    let measured: Measured = bench.measure(command)?;
    ensure!(measured.steps == args.steps, "{} ran {} steps", configuration.name, measured.steps);
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::last_line;

    #[test]
    fn the_measurement_is_found_among_other_lines() {
        let line = r#"{"median_ms": 12.5, "steps": 30, "parameters": 7, "model": "mlp", "start_s": 0.5, "peak_mib": 9}"#;
        let wanted =
            Measured { median_ms: 12.5, steps: 30, parameters: 7, start_s: 0.5, peak_mib: 9.0 };
        assert_eq!(last_line(&format!("starting\n{line}\n")), Some(wanted));
        assert_eq!(last_line::<Measured>("nothing\n{}\n"), None);
    }

    #[test]
    fn without_arguments_the_defaults_are_those_of_the_command_line() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let Line { args } = clap::Parser::parse_from(["bench"]);
        let own = Args::default();
        assert_eq!((args.models, args.ranks), (own.models, own.ranks));
        assert_eq!((args.repeats, args.steps, args.warmup), (own.repeats, own.steps, own.warmup));
    }
}
