//! `cargo xtask older`: the bridge and the crates compile with the oldest libtorch and tch that they are for.
//!
//! In a copy of the working tree under `target/older/`, whose lock file names that tch: one lock file cannot name two.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::venv;
use crate::step::Step;
use crate::workspace::Workspace;

/// The oldest tch, and the libtorch that it is written for.
const TCH: &str = "0.24.0";
pub(crate) const TORCH: &str = "2.11.0";

/// Compiles what users link, the runtime with its bridge, the attribute, and programs that use both, and what checks a GPU.
///
/// # Errors
/// When libtorch cannot be fetched, or something does not compile.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let tree = Tree::prepare(ws, libtorch(ws)?)?;
    let packages = ["-p", "ddp-runtime", "-p", "ddp-examples", "-p", "ddp-tests"];
    let check = tree.cargo(&[&["check", "--quiet"], &packages[..]].concat());
    let hint = "use what both versions have, or ask for TORCH_VERSION_MINOR in csrc/";
    Step::new("Checking", check, hint).run().map(drop)
}

/// A copy of the working tree that is built with that tch.
pub(crate) struct Tree {
    ws: Workspace,
    libtorch: PathBuf,
}

impl Tree {
    /// Brings the copy up to date, to be built against `libtorch`.
    ///
    /// # Errors
    /// When a file cannot be copied, or cargo cannot choose that tch.
    pub(crate) fn prepare(ws: &Workspace, libtorch: PathBuf) -> Result<Self> {
        let tree = Self { ws: ws.clone(), libtorch };
        copy_tree(ws, &tree.root())?;
        let update = tree.cargo(&["update", "--quiet", "tch", "torch-sys", "--precise", TCH]);
        let hint = "the workspace's Cargo.toml must allow that version";
        let _ = Step::new("Choosing", update, hint).run()?;
        Ok(tree)
    }

    fn root(&self) -> PathBuf {
        folder(&self.ws).join("tree")
    }

    /// A cargo that builds the copy.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.ws.cargo(args.iter().copied());
        command.current_dir(self.root()).env("LIBTORCH", &self.libtorch);
        command.env("CARGO_TARGET_DIR", folder(&self.ws).join("build"));
        command
    }
}

fn folder(ws: &Workspace) -> PathBuf {
    ws.own_target().join("older")
}

/// libtorch of that version, in an environment of its own; only its headers and libraries are needed.
///
/// # Errors
/// When it cannot be fetched.
pub(crate) fn libtorch(ws: &Workspace) -> Result<PathBuf> {
    let venv = folder(ws).join("venv");
    venv::create(&venv)?;
    if let Ok(torch) = venv::torch_of(&venv, TORCH) {
        return Ok(torch);
    }
    venv::pip(&venv, &[format!("torch=={TORCH}")], &["--quiet", "--no-deps"])?;
    venv::torch_of(&venv, TORCH)
}

/// Copies what git knows or would take; files that have not changed keep their times, so that little is built again.
fn copy_tree(ws: &Workspace, to: &Path) -> Result<()> {
    let mut git = ws.command("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().context("git cannot be started")?;
    if !output.status.success() {
        bail!("git cannot list the files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let root = ws.root();
    for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty())
    {
        let (from, to) = (root.join(name), to.join(name));
        // Listed, and deleted in the working tree.
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        std::fs::write(&to, bytes)
            .with_context(|| format!("{} cannot be written", to.display()))?;
    }
    Ok(())
}
