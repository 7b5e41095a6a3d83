//! `cargo xtask bench`: this project and PyTorch's DDP in turn, on the same libtorch, models, batches and threads.

mod all_reduce;
mod chart;
mod configuration;
mod loader;
mod machine;
mod record;
mod report;
mod steps;

use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use self::record::Record;
use crate::programs::Programs;
use crate::setup::Libtorch;
use crate::step::render;
use crate::workspace::Workspace;
use crate::{setup, style};

/// What to measure.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// The part to measure; without one the steps and the all-reduce
    #[command(subcommand)]
    part: Option<Part>,
    /// Put the figures into docs/benchmarks.md, its charts and docs/benchmarks.json
    #[arg(long, global = true)]
    record: bool,
}

#[derive(clap::Subcommand, Clone)]
enum Part {
    /// Step time, time to the first step, and memory
    Step(steps::Args),
    /// The all-reduce alone, and the bandwidth of the memory
    AllReduce(all_reduce::Args),
    /// Samples a second through the data loader; a table alone, which no record keeps
    Loader(loader::Args),
    /// Write docs/benchmarks.md and its charts anew from docs/benchmarks.json
    Render,
}

/// What is needed to start any of the programs.
struct Bench {
    ws: Workspace,
    python: PathBuf,
    programs: Programs,
    libtorch: Libtorch,
}

/// Measures and prints tables. Figures are shown, never judged.
///
/// # Errors
/// When a program fails, or the two sides did not run the same model.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    if matches!(args.part, Some(Part::Render)) {
        return report::write(ws, &Record::read(ws)?);
    }
    if let Some(Part::Loader(part)) = &args.part {
        let libtorch = setup::provide(ws)?;
        return loader::run(ws, part, &setup::python_with_torch(ws, &libtorch)?);
    }
    let bench = Bench::new(ws)?;
    let mut record = Record::new(machine::facts(&bench.libtorch.version));
    if let None | Some(Part::Step(_)) = &args.part {
        let step = match &args.part {
            Some(Part::Step(step)) => step.clone(),
            _ => steps::Args::default(),
        };
        record.steps = steps::measure(&bench, &step)?;
    }
    if let None | Some(Part::AllReduce(_)) = &args.part {
        let part = match &args.part {
            Some(Part::AllReduce(part)) => part.clone(),
            _ => all_reduce::Args::default(),
        };
        record.all_reduce = all_reduce::measure(&bench, &part)?;
    }
    println!("{}", report::tables(&record));
    if args.record {
        let record = record.over(Record::read(ws).ok());
        record.write(ws)?;
        report::write(ws, &record)?;
    }
    Ok(())
}

impl Bench {
    fn new(ws: &Workspace) -> Result<Self> {
        let libtorch = setup::provide(ws)?;
        let python = setup::python_with_torch(ws, &libtorch)?;
        let packages = ["ddp-examples", "cargo-ddp"];
        let names = ["bench_step", "bench_all_reduce", "cargo-ddp"];
        let programs = Programs::build(ws, &packages, &names)?;
        Ok(Self { ws: ws.clone(), python, programs, libtorch })
    }

    /// Runs a program that prints a measurement as the last line of JSON.
    fn measure<T: DeserializeOwned>(&self, mut command: Command) -> Result<T> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        command.env("OMP_NUM_THREADS", "1").env("BENCH_STARTED", now.as_secs_f64().to_string());
        let line = render(&command);
        let output = command.output().with_context(|| format!("`{line}` cannot be started"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`{line}` failed ({}):\n{stderr}", output.status);
        last_line(&String::from_utf8_lossy(&output.stdout))
            .with_context(|| format!("`{line}` printed no measurement:\n{stderr}"))
    }
}

/// The last line that is a measurement.
fn last_line<T: DeserializeOwned>(stdout: &str) -> Option<T> {
    stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// One turn of a configuration, on standard error.
fn turn(what: &str, turn: u32, turns: u32, figure: &str, name: &str) {
    style::doing(&format!("{what} {turn}/{turns}"), &format!("{figure:>12}  {name}"));
}
