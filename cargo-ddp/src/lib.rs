//! `cargo ddp`: builds a training program and starts it on several ranks, with torchrun's contract.
//!
//! One room a question:
//!
//! * `cli`: what was asked for;
//! * `program`: which executable that is (cargo's selection rules, then a build);
//! * `host`: what this machine has to offer;
//! * `job`: the ranks of one run, from their environment to the report of a failure;
//! * `output`: where what they print goes;
//! * `expand`: what the attribute makes of a program;
//! * `doctor`: what is missing on this machine.
//!
//! What decides is a pure function (environment of a rank, reaction to an exit, root cause); what
//! touches processes and files stands around it and decides nothing.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

mod cli;
mod doctor;
mod error;
mod expand;
mod host;
mod job;
mod output;
mod program;
mod style;

/// Runs the command with `args`, the first of which is the name of the executable.
///
/// Both `cargo-ddp run ..` and what cargo makes of `cargo ddp run ..` (`cargo-ddp ddp run ..`) are
/// understood. The binary of this crate is the only caller: the job's keeper is started by
/// executing the current executable again.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|arg| arg == job::KEEPER_ARGUMENT) {
        return job::keep(&args[2..]);
    }
    if args.get(1).is_some_and(|arg| arg == "ddp") {
        args.remove(1);
    }
    let outcome = match cli::Cli::parse_from(args).command {
        cli::Command::Run(run) => job::run(&run),
        cli::Command::Expand(expand) => expand::run(&expand),
        cli::Command::Doctor(doctor) => Ok(doctor::run(&doctor)),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            style::error(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}
