//! Providing libtorch: which one is asked for, whether it is whole, and the link `target/libtorch` to it.
//!
//! Order, as torch-sys looks: `LIBTORCH_USE_PYTORCH` (the torch of the caller's python), then `LIBTORCH`, then what
//! `target/libtorch` already is, then a virtual environment of our own under `target/venv`.

mod asked;
mod libtorch;
mod link;
mod needs;
mod python;
pub(crate) mod venv;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub(crate) use self::libtorch::{Libtorch, TORCH_VERSION};
pub(crate) use self::python::owner_of;

use self::asked::Asked;
use crate::style;
use crate::workspace::Workspace;

/// Makes `target/libtorch` name a whole libtorch of the wanted version; quick where it already does.
///
/// # Errors
/// When something is missing that this cannot provide; the text says what and how to get it.
pub(crate) fn provide(ws: &Workspace) -> Result<Libtorch> {
    let asked = asked::asked(&|name| std::env::var_os(name), &ws.libtorch())?;
    needs::compiler()?;
    let _lock = lock(&ws.own_target())?;
    let found = match asked {
        Asked::Python => python::torch_folder(Path::new(python::of_caller()))
            .with_context(|| format!("{} is set", asked::USE_PYTORCH))?,
        Asked::Folder(folder) => folder,
        Asked::Nothing => match link::current(&ws.libtorch()) {
            Some(current) if usable(ws, &current) => current,
            _ => {
                // Looked at before gigabytes are fetched, not after.
                link::replaceable(&ws.libtorch())?;
                venv::install(&venv::folder(ws))?
            }
        },
    };
    let libtorch = libtorch::check(&found, libtorch::TORCH_VERSION)?;
    link::point(&ws.libtorch(), &libtorch.folder)?;
    Ok(libtorch)
}

/// The libtorch that the caller's environment asks for, or, where it asks for none and none is linked yet, that of the caller's
/// python, if it is whole and of that version.
///
/// # Errors
/// When the environment asks for something that cannot be meant.
pub(crate) fn at_hand(ws: &Workspace, version: &str) -> Result<Option<Libtorch>> {
    let python = Path::new(python::of_caller());
    match asked::asked(&|name| std::env::var_os(name), &ws.libtorch())? {
        Asked::Python => of_python(python, version),
        Asked::Folder(folder) => Ok(of_version(&folder, version)),
        Asked::Nothing if link::current(&ws.libtorch()).is_some() => Ok(None),
        Asked::Nothing => Ok(of_python(python, version).unwrap_or_default()),
    }
}

/// The libtorch of a python's PyTorch, if it is of that version.
///
/// # Errors
/// When the python cannot be started, or has no PyTorch.
pub(crate) fn of_python(python: &Path, version: &str) -> Result<Option<Libtorch>> {
    Ok(of_version(&python::torch_folder(python)?, version))
}

fn of_version(folder: &Path, version: &str) -> Option<Libtorch> {
    libtorch::check(folder, version).ok().filter(|found| found.version == version)
}

/// The python whose PyTorch is the libtorch in use; where that has none, the one of `target/venv`.
///
/// # Errors
/// When `target/venv` has to be made and cannot be.
pub(crate) fn python_with_torch(ws: &Workspace, libtorch: &Libtorch) -> Result<PathBuf> {
    if let Some(python) = owner_of(&libtorch.folder) {
        return Ok(python);
    }
    style::note("the libtorch in use belongs to no python; PyTorch of the same version is used");
    let venv = venv::folder(ws);
    venv::install(&venv)?;
    Ok(venv::python(&venv))
}

/// Whether what the link names can be kept: whole, of the wanted version, and no half-made environment of ours.
fn usable(ws: &Workspace, current: &Path) -> bool {
    let venv = venv::folder(ws);
    let ours = venv.canonicalize().is_ok_and(|venv| current.starts_with(venv));
    match libtorch::check(current, libtorch::TORCH_VERSION) {
        Ok(_) => !ours || venv::is_complete(&venv),
        Err(flaw) => {
            style::note(&format!("target/libtorch cannot be kept: {flaw}"));
            false
        }
    }
}

/// Keeps a second `setup` waiting until this one is done.
fn lock(target: &Path) -> Result<File> {
    std::fs::create_dir_all(target)
        .with_context(|| format!("{} cannot be made", target.display()))?;
    let path = target.join("setup.lock");
    let file = File::create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
    if file.try_lock().is_err() {
        style::doing("Waiting", "for another `cargo xtask setup` to finish");
        if let Err(error) = file.lock() {
            bail!("{} cannot be locked: {error}", path.display());
        }
    }
    Ok(file)
}

/// Programs made up for tests.
#[cfg(test)]
mod scripts {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A program at `dir/name` that does what `script` says. A shell writes it: were it written here, a
    /// process started meanwhile by another test would hold it open for writing, and it could not be run.
    pub(super) fn program(dir: &Path, name: &str, script: &str) -> PathBuf {
        let path = dir.join(name);
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod +x \"$1\"";
        let status =
            Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(script).status().unwrap();
        assert!(status.success());
        path
    }
}
