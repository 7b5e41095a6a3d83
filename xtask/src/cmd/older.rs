//! `cargo xtask older`: the bridge and the crates compile with the oldest libtorch and tch that they are for.
//!
//! In a copy of the working tree under `target/older/`, whose lock file names that tch: one lock file cannot name two.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::setup::venv;
use crate::step::Step;
use crate::workspace::Workspace;

/// The oldest tch, and the libtorch that it is written for.
const TCH: &str = "0.24.0";
const TORCH: &str = "2.11.0";

/// Compiles what users link: the runtime with its bridge, the attribute, and programs that use both.
///
/// # Errors
/// When libtorch cannot be fetched, or something does not compile.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let older = ws.own_target().join("older");
    let libtorch = libtorch(&older.join("venv"))?;
    let tree = older.join("tree");
    copy_tree(ws, &tree)?;
    let cargo = |args: &[&str]| {
        let mut command = ws.cargo(args.iter().copied());
        command.current_dir(&tree).env("LIBTORCH", &libtorch);
        command.env("CARGO_TARGET_DIR", older.join("build"));
        command
    };
    let update = cargo(&["update", "--quiet", "tch", "torch-sys", "--precise", TCH]);
    let hint = "the workspace's Cargo.toml must allow that version";
    let _ = Step::new("Choosing", update, hint).run()?;
    let check = cargo(&["check", "--quiet", "-p", "ddp-runtime", "-p", "ddp-examples"]);
    let hint = "use what both versions have, or ask for TORCH_VERSION_MINOR in csrc/";
    Step::new("Checking", check, hint).run().map(drop)
}

/// libtorch of that version, in an environment of its own; only its headers and libraries are needed.
fn libtorch(venv: &Path) -> Result<PathBuf> {
    venv::create(venv)?;
    if let Ok(torch) = venv::torch_of(venv, TORCH) {
        return Ok(torch);
    }
    venv::pip(venv, &[format!("torch=={TORCH}")], &["--quiet", "--no-deps"])?;
    venv::torch_of(venv, TORCH)
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
