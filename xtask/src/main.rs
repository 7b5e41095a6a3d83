//! The project's own commands: `cargo xtask setup | demo | test | bench | simulate | gpu | older | ci`.
//!
//! One short file a command under `cmd/`; what they share (a step, styled lines, the workspace) stands beside
//! this file. Nothing here links libtorch: `setup` must run before it is there.

mod cmd;
mod plot;
mod programs;
mod setup;
mod stats;
mod step;
mod style;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Provide libtorch: link target/libtorch to the one asked for, or install one under target/
    Setup,
    /// Train on handwritten digits with one process, then with two ranks, and compare
    Demo(cmd::demo::Args),
    /// Run every test (or those whose name holds FILTER)
    Test(cmd::test::Args),
    /// Measure training steps, all-reduces and data loading in turn with PyTorch's
    Bench(cmd::bench::Args),
    /// Show how steps scale to more ranks than one has, from latency and bandwidth
    Simulate(cmd::simulate::Args),
    /// Check on one GPU what needs one; exit code 77 where there is none
    Gpu(cmd::gpu::Args),
    /// Compile with the oldest libtorch and tch that are supported
    Older,
    /// Everything that a change must pass
    Ci,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = Workspace::find().and_then(|ws| match cli.command {
        Cmd::Setup => cmd::setup::run(&ws),
        Cmd::Demo(args) => cmd::demo::run(&ws, &args),
        Cmd::Test(args) => cmd::test::run(&ws, &args),
        Cmd::Bench(args) => cmd::bench::run(&ws, &args),
        Cmd::Simulate(args) => cmd::simulate::run(&ws, &args),
        Cmd::Gpu(args) => cmd::gpu::run(&ws, &args),
        Cmd::Older => cmd::older::run(&ws),
        Cmd::Ci => cmd::ci::run(&ws),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<cmd::gpu::NoGpu>() => {
            style::note(&error.to_string());
            ExitCode::from(cmd::gpu::SKIPPED)
        }
        Err(error) => {
            if !error.is::<step::Said>() {
                style::failure(&error);
            }
            ExitCode::FAILURE
        }
    }
}
