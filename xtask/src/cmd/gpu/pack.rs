//! Checks for a machine that has a GPU and PyTorch, and neither Rust nor a network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::checks::Tools;
use super::{PEER, programs};
use crate::cmd::older::{self, Tree};
use crate::workspace::Workspace;
use crate::{setup, style};

/// What can be packed for, the usual one first.
pub(super) const VERSIONS: [&str; 2] = [setup::TORCH_VERSION, older::TORCH];

const WORKER: &str = "ddp-worker";
const LAUNCHER: &str = "cargo-ddp";
const XTASK: &str = "xtask";
const STEPS: &str = "gpu_step.py";
/// The version of the libtorch that the worker was built for.
const VERSION: &str = "torch-version";
const RUN: &str = "run";
const SCRIPT: &str = "#!/bin/sh
# Checks on this machine's GPU what needs one, with the PyTorch of its python3. Exit code 77: there is no GPU.
here=$(cd \"$(dirname \"$0\")\" && pwd) || exit 1
exec \"$here/xtask\" gpu --packed \"$here\"
";

/// Builds for a libtorch of `torch`, or the one in use, and puts everything into `folder`.
///
/// # Errors
/// When the build fails, or a file cannot be written.
pub(super) fn pack(ws: &Workspace, folder: &Path, torch: Option<&str>) -> Result<()> {
    let (programs, version) = if torch == Some(older::TORCH) {
        let tree = Tree::prepare(ws, older::libtorch(ws)?)?;
        (programs(|args| tree.cargo(args))?, older::TORCH.to_owned())
    } else {
        let version = setup::provide(ws)?.version;
        (programs(|args| ws.cargo(args.iter().copied()))?, version)
    };
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let own = std::env::current_exe().context("this program has no path")?;
    for (name, from) in
        [(WORKER, programs.path(WORKER)?), (LAUNCHER, programs.path(LAUNCHER)?), (XTASK, &own)]
    {
        let to = folder.join(name);
        copy(from, &to)?;
        // Symbols are most of them. Without `strip` the folder is larger, and as good.
        let stripped = Command::new("strip").arg(&to).status();
        if !stripped.is_ok_and(|status| status.success()) {
            style::note(&format!("{} is packed with its symbols: there is no `strip`", name));
        }
    }
    copy(&ws.root().join(PEER), &folder.join(STEPS))?;
    write(&folder.join(VERSION), &version)?;
    let run = folder.join(RUN);
    write(&run, SCRIPT)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} cannot be made a program", run.display()))?;
    style::note(&format!(
        "packed for PyTorch {version}: take {} along, and start {RUN} there",
        folder.display()
    ));
    Ok(())
}

/// What lies in a packed folder, with the libtorch of this machine's python3.
///
/// # Errors
/// When python3 has no PyTorch, or one of another version.
pub(super) fn unpacked(folder: &Path) -> Result<Tools> {
    let version = fs::read_to_string(folder.join(VERSION))
        .with_context(|| format!("{} holds nothing that was packed", folder.display()))?;
    let python = Path::new("python3");
    let Some(libtorch) = setup::of_python(python, version.trim())? else {
        bail!("the PyTorch of python3 is not {version}; pack with `--torch` and its version");
    };
    Ok(Tools {
        root: folder.to_owned(),
        worker: folder.join(WORKER),
        launcher: folder.join(LAUNCHER),
        python: python.to_owned(),
        peer: folder.join(STEPS),
        libtorch: libtorch.folder,
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("{} cannot be copied to {}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_what_was_packed_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = unpacked(folder.path()).err().unwrap().to_string();
        assert!(error.contains("holds nothing that was packed"), "{error}");
    }
}
