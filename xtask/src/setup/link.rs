//! The link `target/libtorch`.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why the link could not be set.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("{0} is neither a link nor a libtorch; move it away and run `cargo xtask setup` again")]
    Occupied(PathBuf),
    #[error("{0} cannot be made: {1}")]
    Io(PathBuf, #[source] io::Error),
}

/// Where the link leads, or the folder itself where it is one; none when it leads nowhere.
pub(crate) fn current(link: &Path) -> Option<PathBuf> {
    link.canonicalize().ok()
}

/// Whether there is a link at `link`, or nothing: anything else is the user's own, and is never removed.
///
/// # Errors
/// When something else stands there.
pub(crate) fn replaceable(link: &Path) -> Result<(), LinkError> {
    if link.symlink_metadata().is_ok_and(|there| !there.is_symlink()) {
        return Err(LinkError::Occupied(link.to_path_buf()));
    }
    Ok(())
}

/// Makes `link` lead to `folder`, in one step, so that no build ever sees it missing. A folder in the link's
/// place that already is `folder` is left as it is.
pub(crate) fn point(link: &Path, folder: &Path) -> Result<(), LinkError> {
    let failed = |error| LinkError::Io(link.to_path_buf(), error);
    if current(link).as_deref() == Some(folder) {
        return Ok(());
    }
    replaceable(link)?;
    let fresh = link.with_extension(format!("new-{}", std::process::id()));
    if let Some(parent) = link.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let _ = std::fs::remove_file(&fresh);
    symlink(folder, &fresh).map_err(failed)?;
    std::fs::rename(&fresh, link).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder with the folders `a` and `b` in it, and the link's place.
    fn place() -> (tempfile::TempDir, PathBuf, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (a, b) = (root.join("a"), root.join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        (dir, a, b, root.join("target/libtorch"))
    }

    #[test]
    fn a_link_is_made_kept_and_moved() {
        let (_dir, a, b, link) = place();
        for folder in [&a, &a, &b] {
            point(&link, folder).unwrap();
            assert_eq!(current(&link).as_ref(), Some(folder));
        }
        let left = std::fs::read_dir(link.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "only the link stands there");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_replaced() {
        let (_dir, a, b, link) = place();
        point(&link, &a).unwrap();
        std::fs::remove_dir(&a).unwrap();
        assert_eq!(current(&link), None);
        point(&link, &b).unwrap();
        assert_eq!(current(&link), Some(b));
    }

    #[test]
    fn a_folder_in_its_place_is_never_removed() {
        let (_dir, a, _b, link) = place();
        std::fs::create_dir_all(link.join("lib")).unwrap();
        let text = point(&link, &a).unwrap_err().to_string();
        assert!(text.contains("move it away"), "{text}");
        assert!(link.join("lib").is_dir());
        point(&link, &link).unwrap();
    }
}
