//! Which libtorch the caller's environment asks for: a pure decision.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The variable that names a libtorch folder.
pub(crate) const LIBTORCH: &str = "LIBTORCH";
/// The variable that asks for the torch of the caller's python.
pub(crate) const USE_PYTORCH: &str = "LIBTORCH_USE_PYTORCH";

/// What the environment asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The torch of the python that is first in PATH.
    Python,
    /// This folder.
    Folder(PathBuf),
    /// Nothing: what is there is kept, or one is installed.
    Nothing,
}

/// A value that cannot be meant.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum AskedError {
    #[error("{LIBTORCH} is set but empty; unset it, or let it name a libtorch folder")]
    Empty,
    #[error(
        "{LIBTORCH}={0} is a relative path, which torch-sys would look for below its own sources; write it absolute"
    )]
    Relative(String),
}

/// Reads the environment through `lookup`. `own_link` is what `.cargo/config.toml` sets where the caller set
/// nothing, so it counts as nothing.
///
/// torch-sys lets `LIBTORCH_USE_PYTORCH` win over `LIBTORCH`; so does this, or the link would name another
/// libtorch than the one built against.
pub(crate) fn asked(
    lookup: &dyn Fn(&str) -> Option<OsString>,
    own_link: &Path,
) -> Result<Asked, AskedError> {
    if lookup(USE_PYTORCH).is_some() {
        return Ok(Asked::Python);
    }
    let Some(value) = lookup(LIBTORCH) else { return Ok(Asked::Nothing) };
    let folder = PathBuf::from(value);
    if folder.as_os_str().is_empty() {
        Err(AskedError::Empty)
    } else if folder.is_relative() {
        Err(AskedError::Relative(folder.display().to_string()))
    } else if is_same_link(&folder, own_link) {
        Ok(Asked::Nothing)
    } else {
        Ok(Asked::Folder(folder))
    }
}

/// Compares the places of two links without following the links themselves.
fn is_same_link(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent().map(|p| p.canonicalize().unwrap_or_else(|_| p.to_path_buf()));
        (folder, path.file_name().map(ToOwned::to_owned))
    };
    place(a) == place(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(set: &[(&str, &str)]) -> Result<Asked, AskedError> {
        let lookup = |name: &str| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        asked(&lookup, Path::new("/repo/target/libtorch"))
    }

    #[test]
    fn nothing_set_asks_for_nothing() {
        assert_eq!(ask(&[]), Ok(Asked::Nothing));
    }

    #[test]
    fn the_link_of_the_cargo_configuration_counts_as_not_set() {
        assert_eq!(ask(&[(LIBTORCH, "/repo/target/libtorch")]), Ok(Asked::Nothing));
        assert_eq!(ask(&[(LIBTORCH, "/repo/target/libtorch/")]), Ok(Asked::Nothing));
    }

    #[test]
    fn a_folder_is_taken() {
        let folder = Asked::Folder(PathBuf::from("/opt/libtorch"));
        assert_eq!(ask(&[(LIBTORCH, "/opt/libtorch")]), Ok(folder));
    }

    #[test]
    fn python_wins_as_it_does_in_torch_sys() {
        let both = [(LIBTORCH, "/opt/libtorch"), (USE_PYTORCH, "1")];
        assert_eq!(ask(&both), Ok(Asked::Python));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert_eq!(ask(&[(LIBTORCH, "")]), Err(AskedError::Empty));
        assert_eq!(ask(&[(LIBTORCH, "torch")]), Err(AskedError::Relative("torch".into())));
    }
}
