//! What the user can ask for.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ddp_env::names;

use crate::error::RunError;

/// Data-parallel training: one process a rank, started and watched together.
#[derive(Debug, Parser)]
#[command(name = "cargo-ddp", bin_name = "cargo ddp", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a program and run it on N ranks
    Run(Box<RunArgs>),
    /// Show what #[distributed] makes of a program (by cargo-expand)
    Expand(Box<ExpandArgs>),
    /// Show what this machine has and what is missing for training
    Doctor(DoctorArgs),
}

const EXAMPLES: &str = "\
Examples:
  cargo ddp run -n 2 --release --bin train -- --epochs 5
  cargo ddp run -n auto --exec ./target/release/train -- --epochs 5
  cargo ddp run -n 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1    (and 1 on the other host)

Every rank finds torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR, MASTER_PORT, ..) in its environment. OMP_NUM_THREADS is set to the usable cores shared
out over the ranks of the host, unless it is set already.

Ctrl-C, SIGTERM and SIGHUP ask every rank to stop (SIGTERM) and give it --grace seconds; a second
Ctrl-C ends them at once. SIGUSR1 is passed on to the ranks. When a rank fails, the others are stopped within seconds and the first
failure is printed last. No process of the job outlives the launcher, however it ends.

Standard input goes to rank 0, unless it is a terminal: the ranks run in the background of it.

Exit status: 0 when all ranks end with 0; else the code of the rank that failed first, or 128 plus
the number of the signal that ended it.";

/// Options of `cargo ddp run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Ranks on this host: a number, or `auto`: one for each visible GPU, without GPUs one for each
    /// usable core
    #[arg(short = 'n', long = "nproc-per-node", value_name = "N", value_parser = parse_count)]
    pub(crate) ranks: Count,

    #[command(flatten, next_help_heading = "Several hosts")]
    pub(crate) hosts: HostArgs,

    /// Run this executable instead of building one
    #[arg(long, value_name = "PATH", conflicts_with_all = ["package", "bin", "example"])]
    pub(crate) exec: Option<PathBuf>,

    /// Several ranks may share a GPU (tests of correctness, never of speed)
    #[arg(long)]
    pub(crate) share_gpus: bool,

    #[command(flatten, next_help_heading = "Output")]
    pub(crate) output: OutputArgs,

    /// Seconds the ranks get to end by themselves after SIGTERM or Ctrl-C [default: DDP_GRACE, else
    /// 30]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) grace: Option<Duration>,

    #[command(flatten, next_help_heading = "Cargo, as of `cargo run`")]
    pub(crate) cargo: CargoArgs,

    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(crate) args: Vec<OsString>,
}

impl RunArgs {
    /// The grace time: `--grace`, else `inherited` (DDP_GRACE), else 30 s.
    pub(crate) fn grace(&self, inherited: Option<String>) -> Result<Duration, RunError> {
        if let Some(grace) = self.grace {
            return Ok(grace);
        }
        match inherited.filter(|value| !value.is_empty()) {
            None => Ok(Duration::from_secs(30)),
            Some(value) => parse_seconds(&value).map_err(|expected| RunError::Grace {
                name: names::DDP_GRACE,
                value,
                expected,
            }),
        }
    }
}

/// Where a job of several hosts meets.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Hosts of the job; the command is started on each
    #[arg(long, value_name = "K", default_value = "1")]
    pub(crate) nnodes: NonZeroUsize,
    /// Position of this host, from 0
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub(crate) node_rank: usize,
    /// Address of host 0
    #[arg(long, value_name = "ADDR")]
    pub(crate) master_addr: Option<String>,
    /// Port on host 0 [default: a free one; 29500 with several hosts]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) master_port: Option<u16>,
}

/// Where the output of the ranks goes.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Which output is shown
    #[arg(long, value_enum, value_name = "MODE", default_value_t = OutputMode::Mixed)]
    pub(crate) output: OutputMode,
    /// Also write the output of each rank to DIR/rank-R.log (rank 0 then writes to a pipe, so
    /// that its progress bar sees no terminal)
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
}

/// What of the ranks' output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputMode {
    /// Rank 0 as it writes, with its progress bars; the others by line, after `[rank 1] `
    Mixed,
    /// All ranks by line, after `[rank 0] `
    Prefixed,
    /// Rank 0 only
    Main,
}

/// The options of `cargo run` that choose and build a program.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CargoArgs {
    /// Package with the program
    #[arg(short, long, value_name = "SPEC")]
    pub(crate) package: Option<String>,
    /// Name of the binary
    #[arg(long, value_name = "NAME")]
    pub(crate) bin: Option<String>,
    /// Name of the example
    #[arg(long, value_name = "NAME", conflicts_with = "bin")]
    pub(crate) example: Option<String>,
    /// Build in release mode
    #[arg(short, long, conflicts_with = "profile")]
    pub(crate) release: bool,
    /// Build with this profile
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Features to activate
    #[arg(short = 'F', long, value_name = "FEATURES")]
    pub(crate) features: Vec<String>,
    /// Activate all features
    #[arg(long)]
    pub(crate) all_features: bool,
    /// Do not activate the `default` feature
    #[arg(long)]
    pub(crate) no_default_features: bool,
    /// Build for this target triple
    #[arg(long, value_name = "TRIPLE")]
    pub(crate) target: Option<String>,
    /// Folder for what is built
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: Option<PathBuf>,
    /// Path of Cargo.toml
    #[arg(long, value_name = "PATH")]
    pub(crate) manifest_path: Option<PathBuf>,
    /// Parallel build jobs
    #[arg(short, long, value_name = "N")]
    pub(crate) jobs: Option<String>,
    /// Cargo.lock must stay as it is
    #[arg(long)]
    pub(crate) locked: bool,
    /// No network
    #[arg(long)]
    pub(crate) offline: bool,
    /// --locked and --offline
    #[arg(long)]
    pub(crate) frozen: bool,
    /// No status lines
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// More of cargo's output
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXPAND_EXAMPLES: &str = "\
Examples:
  cargo ddp expand --bin train              the whole program
  cargo ddp expand -p nets --lib net::fit   one function of a library

#[distributed(explain)] on the function lists each changed line in its documentation.
Needs cargo-expand: cargo install cargo-expand";

/// Options of `cargo ddp expand`.
#[derive(Debug, Args)]
#[command(after_help = EXPAND_EXAMPLES)]
pub(crate) struct ExpandArgs {
    /// The module, function or type to show, by its path [default: all]
    pub(crate) item: Option<String>,
    /// Show the package's library
    #[arg(long, conflicts_with_all = ["bin", "example"])]
    pub(crate) lib: bool,
    #[command(flatten, next_help_heading = "Program")]
    pub(crate) cargo: CargoArgs,
}

/// Options of `cargo ddp doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Path of the Cargo.toml whose libtorch is looked for
    #[arg(long, value_name = "PATH")]
    pub(crate) manifest_path: Option<PathBuf>,
}

/// How many ranks a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// As many as the host has devices.
    Auto,
    /// This many.
    Of(NonZeroUsize),
}

fn parse_count(text: &str) -> Result<Count, String> {
    if text == "auto" {
        return Ok(Count::Auto);
    }
    text.parse().map(Count::Of).map_err(|_| "not `auto` or a number from 1".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        // An hour is longer than any scheduler waits, and keeps all sums of times in range.
        .filter(|duration| duration.as_secs() <= 3600)
        .ok_or_else(|| "not a number of seconds from 0 to 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(args: &str) -> RunArgs {
        let words = ["cargo-ddp", "run"].into_iter().chain(args.split_whitespace());
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Run(run)) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_the_program_stay_its_own() {
        let parsed = run("-n 2 --release -- --epochs 5 -n 3");
        assert_eq!(parsed.args, ["--epochs", "5", "-n", "3"]);
        assert!(parsed.cargo.release);
        assert_eq!(parsed.ranks, Count::Of(NonZeroUsize::new(2).unwrap()));
        assert_eq!(run("-n auto data.csv --release").args, ["data.csv", "--release"]);
    }

    #[test]
    fn one_item_of_a_program_is_expanded() {
        let words =
            ["cargo-ddp", "expand", "-p", "nets", "-F", "a b", "--bin", "train", "net::fit"];
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Expand(args)) => {
                assert_eq!(args.item.as_deref(), Some("net::fit"));
                assert_eq!(args.cargo.package.as_deref(), Some("nets"));
                assert_eq!(
                    (args.cargo.features.as_slice(), args.lib),
                    (&["a b".to_owned()][..], false)
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(Cli::try_parse_from(["cargo-ddp", "expand", "--lib", "--bin", "a"]).is_err());
    }

    #[test]
    fn p24_the_grace_time_is_an_option_or_a_variable() {
        let seconds = |args: &str, value: Option<&str>| {
            run(args).grace(value.map(str::to_owned)).map(|grace| grace.as_secs())
        };
        assert_eq!(seconds("-n 1", None).unwrap(), 30);
        assert_eq!(seconds("-n 1", Some("")).unwrap(), 30);
        assert_eq!(seconds("-n 1", Some("90")).unwrap(), 90);
        assert_eq!(seconds("-n 1 --grace 5", Some("90")).unwrap(), 5);
        let error = seconds("-n 1", Some("soon")).unwrap_err().to_string();
        assert!(error.starts_with("DDP_GRACE is `soon`"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for args in ["", "-n 0", "-n two", "-n 1 --grace -1", "-n 1 --exec a --bin b"] {
            let words = ["cargo-ddp", "run"].into_iter().chain(args.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{args}");
        }
    }
}
