//! A virtual environment of our own with PyTorch in it, for machines that have no libtorch.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::libtorch::TORCH_VERSION;
use super::{libtorch, needs, python};
use crate::style;
use crate::workspace::Workspace;

/// Written last, with what was installed: an environment without it was cut short.
const MARKER: &str = "installed.txt";

/// Where our environment stands.
pub(crate) fn folder(ws: &Workspace) -> PathBuf {
    ws.own_target().join("venv")
}

/// The environment's python.
pub(crate) fn python(venv: &Path) -> PathBuf {
    venv.join("bin/python")
}

/// What is installed: libtorch comes with torch; numpy is what the truth scripts and torch itself use.
fn packages() -> [String; 2] {
    [format!("torch=={TORCH_VERSION}"), "numpy".to_owned()]
}

/// Whether the installation ran to its end with today's list of packages.
pub(crate) fn is_complete(venv: &Path) -> bool {
    let installed = std::fs::read_to_string(venv.join(MARKER));
    installed.is_ok_and(|installed| installed == packages().join("\n"))
}

/// The folder of torch in `venv`, which is made, finished where it was cut short, or made anew where it is damaged.
///
/// # Errors
/// When there is no fitting python3, or pip fails; pip's own words are on the terminal by then.
pub(crate) fn install(venv: &Path) -> Result<PathBuf> {
    if is_complete(venv)
        && let Ok(torch) = whole_torch(venv)
    {
        return Ok(torch);
    }
    let marker = venv.join(MARKER);
    let _ = std::fs::remove_file(&marker);
    create(venv)?;
    fill(venv)?;
    if let Err(flaw) = whole_torch(venv) {
        // pip looks at its own records, not at the files: only a fresh environment is sure.
        style::note(&format!("{flaw:#}; {} is made anew", venv.display()));
        std::fs::remove_dir_all(venv)
            .with_context(|| format!("{} cannot be removed", venv.display()))?;
        create(venv)?;
        fill(venv)?;
    }
    let torch = whole_torch(venv)?;
    std::fs::write(&marker, packages().join("\n"))
        .with_context(|| format!("{} cannot be written", marker.display()))?;
    Ok(torch)
}

/// The environment's torch, if it is all there.
fn whole_torch(venv: &Path) -> Result<PathBuf> {
    torch_of(venv, TORCH_VERSION)
}

/// The folder of the environment's torch, if it is all there and of that version.
///
/// # Errors
/// With what is missing.
pub(crate) fn torch_of(venv: &Path, version: &str) -> Result<PathBuf> {
    let torch = python::torch_folder(&python(venv))?;
    Ok(libtorch::check(&torch, version)?.folder)
}

/// Makes the environment unless its python and pip already work.
///
/// # Errors
/// When there is no fitting python3.
pub(crate) fn create(venv: &Path) -> Result<()> {
    let pip = Command::new(python(venv)).args(["-m", "pip", "--version"]).output();
    if pip.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let base = Path::new("python3");
    needs::venv(base)?;
    style::doing("Creating", &format!("a virtual environment in {}", venv.display()));
    let status = Command::new(base)
        .args(["-m", "venv", "--clear"])
        .arg(venv)
        .status()
        .context("`python3 -m venv` cannot be started")?;
    if !status.success() {
        bail!("`python3 -m venv {}` failed ({status}); its words are above", venv.display());
    }
    Ok(())
}

/// Lets pip install the packages, its progress on the terminal.
fn fill(venv: &Path) -> Result<()> {
    pip(venv, &packages(), &[])
}

/// Lets pip install `packages`, with options.
///
/// # Errors
/// When it fails; its own words are on the terminal by then.
pub(crate) fn pip(venv: &Path, packages: &[String], options: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    style::doing("Installing", &format!("{list} with pip (some GB, once)"));
    let status = Command::new(python(venv))
        .args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args(options)
        .args(packages)
        .status()
        .context("pip cannot be started")?;
    if !status.success() {
        bail!(
            "pip could not install {list} ({status}); its words are above. Common causes: no network, \
             less than 8 GB of free disk, a Python without wheels of this PyTorch. To use a libtorch that you \
             have: LIBTORCH=/its/folder cargo xtask setup, or LIBTORCH_USE_PYTORCH=1 cargo xtask setup"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_complete_only_with_todays_packages() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_complete(dir.path()), "nothing was installed");
        std::fs::write(dir.path().join(MARKER), "torch==1.0.0\nnumpy").unwrap();
        assert!(!is_complete(dir.path()), "an older torch was installed");
        std::fs::write(dir.path().join(MARKER), packages().join("\n")).unwrap();
        assert!(is_complete(dir.path()));
    }
}
