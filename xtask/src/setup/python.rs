//! From a python to its torch, and back.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Says where torch is without importing it, which would take seconds.
const FIND_TORCH: &str = "import importlib.util as u; s = u.find_spec('torch'); \
    print(s.submodule_search_locations[0] if s else '')";

/// The python that torch-sys asks: an active virtual environment's, else python3.
pub(crate) fn of_caller() -> &'static str {
    if std::env::var_os("VIRTUAL_ENV").is_some() { "python" } else { "python3" }
}

/// The folder of the torch that `python` imports.
///
/// # Errors
/// When `python` cannot be started or has no torch.
pub(crate) fn torch_folder(python: &Path) -> Result<PathBuf> {
    let name = python.display();
    let output = Command::new(python)
        .args(["-c", FIND_TORCH])
        .output()
        .with_context(|| format!("`{name}` cannot be started; put it into PATH"))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if folder.is_empty() {
        bail!(
            "`{name}` has no torch; install it with `{name} -m pip install torch=={}`",
            super::libtorch::TORCH_VERSION
        );
    }
    Ok(PathBuf::from(folder))
}

/// The python whose torch lies in `libtorch`: `PREFIX/lib/pythonX.Y/site-packages/torch` belongs to
/// `PREFIX/bin/pythonX.Y`, which is asked.
pub(crate) fn owner_of(libtorch: &Path) -> Option<PathBuf> {
    let packages = libtorch.parent()?;
    let version = packages.parent()?;
    let prefix = version.parent()?.parent()?;
    ["python".as_ref(), version.file_name()?, "python3".as_ref()]
        .into_iter()
        .map(|name| prefix.join("bin").join(name))
        .filter(|python| python.is_file())
        .find(|python| {
            torch_folder(python)
                .and_then(|found| Ok(found.canonicalize()?))
                .is_ok_and(|found| libtorch.canonicalize().is_ok_and(|libtorch| libtorch == found))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::scripts::program;

    #[test]
    fn a_torch_is_traced_back_to_its_python() {
        let dir = tempfile::tempdir().unwrap();
        let torch = dir.path().join("lib/python3.11/site-packages/torch");
        std::fs::create_dir_all(&torch).unwrap();
        assert_eq!(owner_of(&torch), None, "no python there");
        std::fs::create_dir_all(dir.path().join("bin")).unwrap();
        let answer = format!("echo '{}'", torch.display());
        let python = program(&dir.path().join("bin"), "python3.11", &answer);
        assert_eq!(owner_of(&torch), Some(python));
        assert_eq!(owner_of(Path::new("/usr")), None);
    }

    #[test]
    fn a_python_without_torch_is_told_what_to_install() {
        let dir = tempfile::tempdir().unwrap();
        let python = program(dir.path(), "python", "echo");
        let text = torch_folder(&python).unwrap_err().to_string();
        assert!(text.contains("pip install torch=="), "{text}");
    }
}
