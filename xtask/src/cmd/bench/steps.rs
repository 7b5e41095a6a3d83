//! Training steps: time of a step, time from the start to the first one, peak memory.

use std::process::Command;

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
    #[arg(short = 'n', long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Vec<u32>,
    /// How often each configuration is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// About how long the measured steps of a run may take, in seconds; at least 8 steps and at most 100 are
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
}

impl Args {
    /// The same measurement, model by model.
    pub(super) fn by_model(self) -> impl Iterator<Item = Self> {
        let models = self.models.clone();
        models.into_iter().map(move |model| Self { models: vec![model], ..self.clone() })
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
    pub(super) fn name(self) -> &'static str {
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
pub(super) struct Measured {
    /// Milliseconds a step, the median of a run.
    pub(super) median_ms: f64,
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
            let measured: Measured =
                bench.measure(command(bench, model, args.seconds, ranks, configuration)?)?;
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

/// The command of a job that prints a [`Measured`].
///
/// # Errors
/// When a program was not built.
pub(super) fn command(
    bench: &Bench,
    model: Model,
    seconds: f64,
    ranks: u32,
    configuration: &Configuration,
) -> Result<Command> {
    let peer = (bench.python.as_path(), PEER);
    let mut command = configuration.command(&bench.ws, peer, (&bench.programs, PROGRAM), ranks)?;
    command.args(["--model", model.name(), "--seconds", &seconds.to_string()]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::last_line;

    #[test]
    fn the_measurement_is_found_among_other_lines() {
        let line = r#"{"median_ms": 12.5, "steps": 30, "parameters": 7, "model": "mlp", "start_s": 0.5, "peak_mib": 9}"#;
        let wanted = Measured { median_ms: 12.5, parameters: 7, start_s: 0.5, peak_mib: 9.0 };
        assert_eq!(last_line(&format!("starting\n{line}\n")), Some(wanted));
        assert_eq!(last_line::<Measured>("nothing\n{}\n"), None);
    }
}
