//! The libtorch that a build of the project would link.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::tools::first_line;
use crate::cli::CargoArgs;
use crate::program;

/// A folder with libtorch, and who named it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Torch {
    pub(super) dir: PathBuf,
    pub(super) named_by: &'static str,
}

/// Where libtorch was looked for in vain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotFound {
    /// Something names a folder that is not a libtorch.
    Wrong { named_by: &'static str, dir: PathBuf },
    /// Nothing names one.
    Nowhere,
    /// `LIBTORCH_USE_PYTORCH` is set, but there is no torch in that Python.
    NoPython,
}

impl Torch {
    pub(super) fn lib(&self) -> PathBuf {
        self.dir.join("lib")
    }

    pub(super) fn has_cuda(&self) -> bool {
        self.lib().join("libtorch_cuda.so").exists()
    }
}

/// Looks in the order of a build: `LIBTORCH_USE_PYTORCH`, `LIBTORCH`, then the link that the
/// project's setup makes.
pub(super) fn find(manifest_path: Option<&Path>) -> Result<Torch, NotFound> {
    let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if is_set("LIBTORCH_USE_PYTORCH").is_some() {
        let script = "import torch, os; print(os.path.dirname(torch.__file__))";
        let dir = first_line(OsStr::new("python3"), &["-c", script]).ok_or(NotFound::NoPython)?;
        return valid("LIBTORCH_USE_PYTORCH", PathBuf::from(dir));
    }
    if let Some(dir) = is_set("LIBTORCH") {
        return valid("LIBTORCH", PathBuf::from(dir));
    }
    let args = CargoArgs {
        manifest_path: manifest_path.map(Path::to_owned),
        offline: true,
        ..CargoArgs::default()
    };
    let folders = program::folders(&args).map_err(|_no_project| NotFound::Nowhere)?;
    let link = folders.into_iter().map(|dir| dir.join("libtorch")).find(|link| link.exists());
    valid("the project's setup", link.ok_or(NotFound::Nowhere)?)
}

fn valid(named_by: &'static str, dir: PathBuf) -> Result<Torch, NotFound> {
    if dir.join("lib/libtorch_cpu.so").exists() {
        Ok(Torch { dir, named_by })
    } else {
        Err(NotFound::Wrong { named_by, dir })
    }
}

pub(super) fn finding(torch: Result<&Torch, &NotFound>) -> Finding {
    const CURE: &str = "set LIBTORCH to the folder of libtorch, or LIBTORCH_USE_PYTORCH=1 to take \
                        the one of python3's torch";
    match torch {
        Ok(torch) => {
            let version = version(&torch.dir).unwrap_or_else(|| "of unknown version".to_owned());
            let kind = if torch.has_cuda() { "with CUDA" } else { "for the CPU" };
            let (dir, named_by) = (torch.dir.display(), torch.named_by);
            Finding::ok("libtorch", format!("{version} {kind} in {dir} (named by {named_by})"))
        }
        Err(NotFound::Wrong { named_by, dir }) => {
            let text =
                format!("{} (named by {named_by}) has no lib/libtorch_cpu.so", dir.display());
            Finding::missing("libtorch", text, CURE)
        }
        Err(NotFound::Nowhere) => Finding::missing("libtorch", "not found", CURE),
        Err(NotFound::NoPython) => Finding::missing(
            "libtorch",
            "LIBTORCH_USE_PYTORCH is set, but python3 has no torch",
            "activate the environment with torch, or pip install torch",
        ),
    }
}

/// The version: of the archive (`build-version`), or of the Python package (`version.py`).
fn version(dir: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(dir.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    python_version(&fs::read_to_string(dir.join("version.py")).ok()?)
}

/// `2.13.0` of `__version__ = '2.13.0'`.
fn python_version(source: &str) -> Option<String> {
    let line = source.lines().find_map(|line| line.strip_prefix("__version__"))?;
    Some(line.trim_start_matches([' ', '=']).trim().trim_matches(['\'', '"']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_kinds() {
        let source = "__all__ = ['x']\n__version__ = '2.13.0+cpu'\ndebug = False\n";
        assert_eq!(python_version(source).as_deref(), Some("2.13.0+cpu"));
        assert_eq!(python_version("x = 1"), None);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("build-version"), "2.13.0+cu130\n").unwrap();
        assert_eq!(version(dir.path()).as_deref(), Some("2.13.0+cu130"));
    }

    #[test]
    fn a_folder_without_libtorch_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = valid("LIBTORCH", dir.path().to_owned()).unwrap_err();
        assert!(finding(Err(&error)).text.ends_with("has no lib/libtorch_cpu.so"));
        fs::create_dir(dir.path().join("lib")).unwrap();
        fs::write(dir.path().join("lib/libtorch_cpu.so"), "").unwrap();
        let torch = valid("LIBTORCH", dir.path().to_owned()).unwrap();
        assert!(!torch.has_cuda() && finding(Ok(&torch)).text.contains("for the CPU"));
    }
}
