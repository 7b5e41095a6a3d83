//! `cargo xtask bench`: this project and PyTorch's DDP in turn, on the same libtorch, models, batches and threads.
//!
//! A part measures, gives rows of the record, and has a table; `report` puts the tables together, `chart` draws.

mod all_reduce;
mod chart;
mod configuration;
mod expansion;
mod loader;
mod machine;
mod overhead;
pub(crate) mod record;
mod report;
mod sampler;
mod steps;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
    /// The part to measure; without one all of them
    #[command(subcommand)]
    part: Option<Part>,
    /// The folder with the files of MNIST, for the data loader, which is left out without it
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Put the figures into docs/benchmarks.md, its charts and docs/benchmarks.json
    #[arg(long, global = true)]
    record: bool,
    /// Seconds that one job may take
    #[arg(long, global = true, default_value_t = 300)]
    limit: u32,
}

#[derive(clap::Subcommand, Clone)]
enum Part {
    /// Step time, time to the first step, and memory
    Step(steps::Args),
    /// The all-reduce alone, and the bandwidth of the memory
    AllReduce(all_reduce::Args),
    /// What the attribute costs on one process, and a timeline on two ranks
    Overhead(overhead::Args),
    /// Samples a second through the data loader
    Loader(loader::Args),
    /// Time and memory of a shuffled order of a thousand million samples
    Sampler(sampler::Args),
    /// Time of the attribute's expansion
    Expansion(expansion::Args),
    /// Write docs/benchmarks.md and its charts anew from docs/benchmarks.json
    Render,
}

/// What is needed to start any of the programs.
struct Bench {
    ws: Workspace,
    python: PathBuf,
    programs: Programs,
    libtorch: Libtorch,
    /// Seconds that one job may take.
    limit: u32,
}

/// Measures and prints tables. Figures are shown, never judged.
///
/// # Errors
/// When a program fails, or the two sides did not run the same model.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let parts = match &args.part {
        Some(Part::Render) => Vec::new(),
        Some(part) => vec![part.clone()],
        None => whole(args.data.clone())?,
    };
    if !parts.is_empty() {
        if args.record {
            // Before time is spent on what could not be added to it.
            Record::stored(ws)?;
        }
        measure(&Bench::new(ws, args.limit)?, &parts, args.record)?;
    }
    if args.record || parts.is_empty() {
        let record = Record::stored(ws)?.context("there are no figures in docs/benchmarks.json")?;
        report::write(ws, &record)?;
    }
    Ok(())
}

/// All parts, the short ones first.
fn whole(data: Option<PathBuf>) -> Result<Vec<Part>> {
    let loader = data.map(loader::Args::of).transpose()?;
    let mut parts = vec![
        Part::Expansion(defaults()?),
        Part::Sampler(defaults()?),
        Part::Overhead(defaults()?),
        Part::AllReduce(defaults()?),
    ];
    // One by one, so that each is kept as soon as it is measured.
    parts.extend(defaults::<steps::Args>()?.by_model().map(Part::Step));
    match loader {
        Some(loader) => parts.insert(2, Part::Loader(loader)),
        None => style::note("the data loader is left out: it needs --data DIR"),
    }
    Ok(parts)
}

/// The arguments of a part as the command line gives them when it says nothing.
fn defaults<A: clap::Args>() -> Result<A> {
    let command = A::augment_args(clap::Command::new("bench"));
    Ok(A::from_arg_matches(&command.try_get_matches_from(["bench"])?)?)
}

/// One part after the other; what is done is kept, whatever happens to the next one.
fn measure(bench: &Bench, parts: &[Part], keep: bool) -> Result<()> {
    let start = Instant::now();
    for part in parts {
        let mut record = Record::new(machine::facts(&bench.libtorch.version));
        match part {
            Part::Step(args) => record.steps = steps::measure(bench, args)?,
            Part::AllReduce(args) => record.all_reduce = all_reduce::measure(bench, args)?,
            Part::Overhead(args) => record.overheads = overhead::measure(bench, args)?,
            Part::Loader(args) => record.loader = loader::measure(bench, args)?,
            Part::Sampler(args) => record.sampler = sampler::measure(bench, args)?,
            Part::Expansion(args) => record.expansion = expansion::measure(bench, args)?,
            Part::Render => {}
        }
        println!("\n{}\n", report::tables(&record));
        style::note(&format!("{:.1} minutes so far", start.elapsed().as_secs_f64() / 60.0));
        if keep {
            record.over(Record::stored(&bench.ws)?).write(&bench.ws)?;
        }
    }
    Ok(())
}

impl Bench {
    fn new(ws: &Workspace, limit: u32) -> Result<Self> {
        let libtorch = setup::provide(ws)?;
        let python = setup::python_with_torch(ws, &libtorch)?;
        let packages = ["ddp-examples", "cargo-ddp"];
        let names = ["bench_step", "bench_all_reduce", "bench_loader", "cargo-ddp"];
        let programs = Programs::build(ws, &packages, &names)?;
        Ok(Self { ws: ws.clone(), python, programs, libtorch, limit })
    }

    /// Runs a program that prints a measurement as the last line of JSON. One that fails has a second try, and is reported: ranks
    /// of PyTorch 2.13 over Gloo abort now and then, and a record takes an hour.
    ///
    /// # Errors
    /// When it fails twice, prints none, or takes longer than it may.
    fn measure<T: DeserializeOwned>(&self, mut command: Command) -> Result<T> {
        let mut job = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            command.env("OMP_NUM_THREADS", "1").env("BENCH_STARTED", now.as_secs_f64().to_string());
            output(&command, self.limit)
        };
        let stdout = job().or_else(|error| {
            style::note(&format!("{error:#}\nonce more"));
            job()
        })?;
        last_line(&stdout).with_context(|| format!("no measurement was printed, but\n{stdout}"))
    }
}

/// What a command prints.
///
/// # Errors
/// When it fails, or takes longer than it may: it and all that it started are ended then.
fn output(command: &Command, limit: u32) -> Result<String> {
    let line = render(command);
    let output = limited(command, limit)
        .output()
        .with_context(|| format!("`{line}` cannot be started, by `timeout` of the coreutils"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() != Some(124), "`{line}` took over {limit} s:\n{stderr}");
    ensure!(output.status.success(), "`{line}` failed ({}):\n{stderr}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command under `timeout`, which ends launchers together with their ranks.
fn limited(command: &Command, limit: u32) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=10", &limit.to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

/// The last line that is a measurement.
fn last_line<T: DeserializeOwned>(stdout: &str) -> Option<T> {
    stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// One turn of a configuration, on standard error.
fn turn(what: &str, turn: u32, turns: u32, figure: &str, name: &str) {
    style::doing(&format!("{what} {turn}/{turns}"), &format!("{figure:>12}  {name}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_run_has_every_part_that_needs_no_data() {
        assert_eq!(whole(None).unwrap().len(), 9);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(whole(Some(folder.path().to_owned())).unwrap().len(), 10);
        let missing = whole(Some(folder.path().join("none"))).err().unwrap().to_string();
        assert!(missing.contains("no folder that can be read"), "{missing}");
    }

    #[test]
    fn a_command_keeps_its_folder_and_its_environment_under_a_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "pwd; echo $GIVEN"]).current_dir("/").env("GIVEN", "seven");
        assert_eq!(output(&command, 60).unwrap(), "/\nseven\n");
        let mut command = Command::new("sh");
        command.args(["-c", "echo why >&2; exit 3"]);
        let text = output(&command, 60).unwrap_err().to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("why\n"), "{text}");
        // What was started by it goes as well: it would hold the output open.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & wait"]);
        let text = output(&command, 1).unwrap_err().to_string();
        assert!(text.contains("took over 1 s"), "{text}");
    }
}
