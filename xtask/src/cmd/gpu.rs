//! `cargo xtask gpu`: what can only be seen on a GPU, on one, in under five minutes.
//!
//! Correctness on one rank and on two that share the GPU, streams under load, the abort of a collective that hangs, and what a
//! step on one rank costs beside plain tch and PyTorch's DDP. Two ranks on one GPU tell nothing about speed.
//!
//! - `checks`: the runs, what each must show, the table;
//! - `pack`: the same for a machine that has a GPU, and no Rust.

mod checks;
mod pack;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use thiserror::Error;

use self::checks::Tools;
use super::older::{self, Tree};
use crate::programs::Programs;
use crate::setup;
use crate::workspace::Workspace;

/// A host without a GPU has nothing to be checked on.
#[derive(Debug, Error)]
#[error("there is no GPU on this host (no /dev/nvidia0): nothing was checked")]
pub(crate) struct NoGpu;

/// The exit code for that, as test harnesses know it.
pub(crate) const SKIPPED: u8 = 77;

const PEER: &str = "xtask/peers/gpu_step.py";

/// Where to check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Put all that the checks need into FOLDER instead: `FOLDER/run` checks on a machine without Rust
    #[arg(long, value_name = "FOLDER")]
    pack: Option<PathBuf>,
    /// The PyTorch of that machine
    #[arg(long, value_name = "VERSION", requires = "pack", value_parser = pack::VERSIONS)]
    torch: Option<String>,
    /// Check with what was packed into FOLDER
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with = "pack")]
    packed: Option<PathBuf>,
}

/// Checks here, or packs.
///
/// # Errors
/// [`NoGpu`]; when a build fails; when a check fails, after the table.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    if let Some(folder) = &args.pack {
        return pack::pack(ws, folder, args.torch.as_deref());
    }
    if !Path::new("/dev/nvidia0").exists() {
        return Err(NoGpu.into());
    }
    let tools = match &args.packed {
        Some(folder) => pack::unpacked(folder)?,
        None => built(ws)?,
    };
    let cuda = tools.libtorch.join("lib/libtorch_cuda.so");
    if !cuda.exists() {
        bail!(
            "the libtorch in {} is built for the CPU; take one with CUDA",
            tools.libtorch.display()
        );
    }
    checks::run(&tools)
}

/// What is built here, for the libtorch at hand: the oldest that is supported has a tree of its own.
fn built(ws: &Workspace) -> Result<Tools> {
    let (programs, libtorch, python) = match setup::at_hand(ws, older::TORCH)? {
        Some(libtorch) => {
            let tree = Tree::prepare(ws, libtorch.folder.clone())?;
            (
                programs(|args| tree.cargo(args))?,
                libtorch.folder.clone(),
                setup::owner_of(&libtorch.folder),
            )
        }
        None => {
            let libtorch = setup::provide(ws)?;
            let python = setup::python_with_torch(ws, &libtorch)?;
            (programs(|args| ws.cargo(args.iter().copied()))?, libtorch.folder, Some(python))
        }
    };
    Ok(Tools {
        root: ws.root().to_owned(),
        worker: programs.path("ddp-worker")?.to_owned(),
        launcher: programs.path("cargo-ddp")?.to_owned(),
        python: python.unwrap_or_else(|| "python3".into()),
        peer: ws.root().join(PEER),
        libtorch,
    })
}

fn programs(cargo: impl Fn(&[&str]) -> std::process::Command) -> Result<Programs> {
    Programs::build_by(cargo, &["ddp-tests", "cargo-ddp"], &["ddp-worker", "cargo-ddp"])
}
