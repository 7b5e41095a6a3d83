//! What a folder must hold to serve as libtorch.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The version that tch 0.26 is written for (torch-sys refuses others).
pub(crate) const TORCH_VERSION: &str = "2.13.0";

/// Set to take another version, as in torch-sys.
const BYPASS: &str = "LIBTORCH_BYPASS_VERSION_CHECK";

/// Where a libtorch says its version, newest place first.
const VERSION_HEADERS: [&str; 2] =
    ["include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"];

/// A libtorch that was looked through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Libtorch {
    /// The folder with `lib/` and `include/`, links resolved.
    pub(crate) folder: PathBuf,
    /// Its version, as in its headers.
    pub(crate) version: String,
}

/// Why a folder cannot serve.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Flaw {
    #[error(
        "{0} is no libtorch: it has no {1}; name the folder that holds lib/ and include/ (of a PyTorch: `python3 -c 'import torch; print(torch.__path__[0])'`)"
    )]
    Missing(PathBuf, &'static str),
    #[error(
        "{folder} is libtorch {found}, and tch is written for {wanted}; install torch=={wanted}, or set {BYPASS}=1 at your own risk"
    )]
    Version { folder: PathBuf, found: String, wanted: String },
}

/// Looks through `folder`.
pub(crate) fn check(folder: &Path, wanted: &str) -> Result<Libtorch, Flaw> {
    for part in ["lib/libtorch_cpu.so", "include/torch/csrc/api/include/torch/torch.h"] {
        if !folder.join(part).is_file() {
            return Err(Flaw::Missing(folder.to_path_buf(), part));
        }
    }
    let version =
        version(folder).ok_or_else(|| Flaw::Missing(folder.to_path_buf(), VERSION_HEADERS[1]))?;
    if version != wanted && std::env::var_os(BYPASS).is_none() {
        let wanted = wanted.to_owned();
        return Err(Flaw::Version { folder: folder.to_path_buf(), found: version, wanted });
    }
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    Ok(Libtorch { folder, version })
}

fn version(folder: &Path) -> Option<String> {
    VERSION_HEADERS.iter().find_map(|header| {
        let text = std::fs::read_to_string(folder.join(header)).ok()?;
        version_in(&text).map(str::to_owned)
    })
}

/// The string that `TORCH_VERSION` is defined as.
fn version_in(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("#define TORCH_VERSION ")?;
    after.split('"').nth(1)
}

/// A folder that passes for libtorch `version`, for tests.
#[cfg(test)]
pub(crate) fn fake(folder: &Path, version: &str) {
    let header =
        format!("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  \"{version}\"\n");
    for (path, text) in [
        ("lib/libtorch_cpu.so", ""),
        ("include/torch/csrc/api/include/torch/torch.h", ""),
        (VERSION_HEADERS[0], header.as_str()),
    ] {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_header() {
        let text = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  \"2.13.0\"\n";
        assert_eq!(version_in(text), Some("2.13.0"));
        assert_eq!(version_in("#include <torch/headeronly/version.h>"), None);
    }

    #[test]
    fn a_whole_libtorch_passes_and_each_missing_part_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "2.13.0");
        assert_eq!(check(dir.path(), "2.13.0").unwrap().version, "2.13.0");
        for part in ["lib/libtorch_cpu.so", "include/torch/csrc/api/include/torch/torch.h"] {
            let whole = std::fs::read(dir.path().join(part)).unwrap();
            std::fs::remove_file(dir.path().join(part)).unwrap();
            let text = check(dir.path(), "2.13.0").unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
            std::fs::write(dir.path().join(part), whole).unwrap();
        }
    }

    #[test]
    fn another_version_is_refused_with_both_named() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "2.11.0");
        let text = check(dir.path(), "2.13.0").unwrap_err().to_string();
        assert!(text.contains("2.11.0") && text.contains("torch==2.13.0"), "{text}");
    }

    /// A newer tch wants another libtorch: this fails then, and says which constant to move.
    #[test]
    fn the_wanted_version_is_the_one_of_the_locked_torch_sys() {
        let lock = include_str!("../../../Cargo.lock");
        let (_, after) = lock.split_once("name = \"torch-sys\"\nversion = \"").unwrap();
        let locked = after.split('"').next().unwrap();
        assert!(locked.starts_with("0.26."), "torch-sys is {locked} now: look up TORCH_VERSION");
    }
}
