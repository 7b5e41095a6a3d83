//! `cargo xtask bench`: training steps of this project and of PyTorch's DDP, in turn, on the same libtorch.

mod configuration;
mod loader;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use self::configuration::{Configuration, Side};
use crate::programs::Programs;
use crate::step::render;
use crate::workspace::Workspace;
use crate::{setup, style};

/// What to measure, and how often.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Models to measure
    #[arg(long = "model", value_enum, default_values_t = [Model::Mlp, Model::Conv, Model::Layers])]
    models: Vec<Model>,
    /// How often each configuration is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Measured steps of a run
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before the measured ones
    #[arg(long, default_value_t = 5)]
    warmup: u32,
    /// Ranks of the distributed runs
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    ranks: u32,
    /// Measure the data loader in place of steps, on the files of MNIST in this folder
    #[arg(long, value_name = "DIR")]
    loader: Option<PathBuf>,
}

/// The models that both sides build alike.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// 26.8 million parameters in 8 linear layers, batch 64 a rank
    Mlp,
    /// Two convolutions and two linear layers on 28x28 images, batch 256 a rank
    Conv,
    /// 200 linear layers of 64x64, batch 32 a rank
    Layers,
}

impl Model {
    /// The name that both programs take.
    fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Conv => "conv",
            Self::Layers => "layers",
        }
    }
}

/// The line that a measured program prints.
#[derive(Debug, Deserialize, PartialEq)]
struct Measured {
    /// Milliseconds a step.
    median_ms: f64,
    steps: u32,
    /// Trainable numbers of the model, to see that both sides built the same.
    parameters: u64,
}

/// What is needed to start any of the programs.
struct Bench {
    ws: Workspace,
    args: Args,
    python: PathBuf,
    programs: Programs,
}

/// Measures and prints one table a model. Timings are shown, never judged.
///
/// # Errors
/// When a program fails, or the two sides did not run the same model.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let libtorch = setup::provide(ws)?;
    let python = setup::python_with_torch(ws, &libtorch)?;
    if let Some(folder) = &args.loader {
        return loader::run(ws, folder, args.repeats, &python);
    }
    let programs =
        Programs::build(ws, &["ddp-examples", "cargo-ddp"], &["bench_step", "cargo-ddp"])?;
    let bench = Bench { ws: ws.clone(), args: args.clone(), python, programs };
    println!(
        "libtorch {}, 1 thread a rank, SGD, {} repeats of {} steps, all configurations in turn",
        libtorch.version, args.repeats, args.steps
    );
    for &model in &args.models {
        let rows = bench.measure(model)?;
        println!("\n{}", table::render(model.name(), &rows));
    }
    Ok(())
}

impl Bench {
    /// Runs every configuration once, then again, so that a change of the machine's load meets all alike.
    fn measure(&self, model: Model) -> Result<Vec<table::Row>> {
        let configurations = configuration::all(self.args.ranks);
        let mut times = vec![Vec::new(); configurations.len()];
        let mut parameters = None;
        for repeat in 1..=self.args.repeats {
            for (configuration, times) in configurations.iter().zip(&mut times) {
                let measured = self.run_once(model, configuration)?;
                let first = *parameters.get_or_insert(measured.parameters);
                ensure!(
                    measured.parameters == first,
                    "{}: {} parameters, and {first} elsewhere: not the same model",
                    configuration.name,
                    measured.parameters
                );
                let what = format!("{} {repeat}/{}", model.name(), self.args.repeats);
                style::doing(
                    &what,
                    &format!("{:9.2} ms  {}", measured.median_ms, configuration.name),
                );
                times.push(measured.median_ms);
            }
        }
        Ok(configurations.into_iter().zip(times).map(table::Row::from).collect())
    }

    fn run_once(&self, model: Model, configuration: &Configuration) -> Result<Measured> {
        let mut command = match configuration.side {
            Side::PyTorch => configuration.pytorch(&self.ws, &self.python),
            Side::Ours => configuration.ours(&self.ws, &self.programs)?,
        };
        command.args(["--model", model.name()]);
        command.args(["--steps", &self.args.steps.to_string()]);
        command.args(["--warmup", &self.args.warmup.to_string()]);
        command.env("OMP_NUM_THREADS", "1");
        let line = render(&command);
        let output = command.output().with_context(|| format!("`{line}` cannot be started"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`{line}` failed ({}):\n{stderr}", output.status);
        let measured = measured(&String::from_utf8_lossy(&output.stdout))
            .with_context(|| format!("`{line}` printed no measurement:\n{stderr}"))?;
        ensure!(measured.steps == self.args.steps, "`{line}` ran {} steps", measured.steps);
        Ok(measured)
    }
}

/// The last line that is a measurement.
fn measured(stdout: &str) -> Option<Measured> {
    stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measurement_is_found_among_other_lines() {
        let line = r#"{"median_ms": 12.5, "steps": 30, "parameters": 7, "model": "mlp"}"#;
        let wanted = Measured { median_ms: 12.5, steps: 30, parameters: 7 };
        assert_eq!(measured(&format!("starting\n{line}\n")), Some(wanted));
        assert_eq!(measured("nothing\n{}\n"), None);
    }
}
