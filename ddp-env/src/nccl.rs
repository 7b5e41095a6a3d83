//! NCCL's library: its name, where it may lie, and the oldest version that serves.
//!
//! The runtime loads it, the launcher's doctor reports on it; both look in the same order and judge versions alike.

use std::fmt;
use std::path::{Path, PathBuf};

/// The name of NCCL in pip's packages, runtime images and distributions. `libnccl.so` is in developer packages only.
pub const FILE: &str = "libnccl.so.2";

/// The oldest version that is used: from here on communicators that do not block can be relied on.
pub const OLDEST: Version = Version::new(2, 18, 0);

/// A version of NCCL, as `ncclGetVersion` codes it.
///
/// ```
/// use ddp_env::nccl::Version;
///
/// assert_eq!(Version::from_code(22907).to_string(), "2.29.7");
/// assert_eq!(Version::from_code(2708).to_string(), "2.7.8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: i32,
    minor: i32,
    patch: i32,
}

impl Version {
    /// The version `major.minor.patch`.
    #[must_use]
    pub const fn new(major: i32, minor: i32, patch: i32) -> Self {
        Self { major, minor, patch }
    }

    /// The version behind `NCCL_VERSION_CODE`: thousands up to 2.8, ten thousands since.
    #[must_use]
    pub const fn from_code(code: i32) -> Self {
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / unit, code % unit / 100, code % 100)
    }

    /// Whether this version is used.
    #[must_use]
    pub fn serves(self) -> bool {
        self >= OLDEST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Folders that may hold NCCL and that the dynamic linker does not search by itself, likeliest first: beside libtorch
/// (an archive), in the packages of the Python environment that libtorch lies in, and where toolkits and distributions
/// put it. `torch_lib` is the folder of libtorch's libraries.
///
/// ```
/// let folders = ddp_env::nccl::folders(Some("/venv/site-packages/torch/lib".as_ref()));
/// assert!(folders.contains(&"/venv/site-packages/nvidia/nccl/lib".into()));
/// ```
#[must_use]
pub fn folders(torch_lib: Option<&Path>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(lib) = torch_lib {
        folders.push(lib.to_owned());
        let packages = lib.parent().and_then(Path::parent);
        folders.extend(packages.map(|packages| packages.join("nvidia/nccl/lib")));
    }
    let system = [
        "/usr/local/cuda/lib64",
        "/usr/local/nccl/lib",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
    ];
    folders.extend(system.map(PathBuf::from));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_codings_compare() {
        assert_eq!(Version::from_code(22907), Version::new(2, 29, 7));
        assert_eq!(Version::from_code(2804), Version::new(2, 8, 4));
        assert_eq!(Version::from_code(21805), Version::new(2, 18, 5));
        assert!(!Version::from_code(2804).serves() && !Version::from_code(21706).serves());
        assert!(Version::from_code(21800).serves() && Version::from_code(23003).serves());
    }

    #[test]
    fn without_libtorch_the_system_is_searched() {
        assert!(folders(None).iter().all(|folder| folder.starts_with("/usr")));
    }
}
