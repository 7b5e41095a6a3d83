//! Saving: the main rank writes, whole files only, and everybody learns how it went.
use std::path::{Path, PathBuf};

use tch::TchError;

use crate::control::Operation;
use crate::session::{self, Session};

/// Lets the main rank write the file at `path`, and returns its result on all ranks once the file is complete.
///
/// The file is written under another name in the same folder and then renamed, so that nobody ever reads a part of it.
/// With one rank `write` is called with `path` itself.
pub(crate) fn store(
    path: &Path,
    write: impl FnOnce(PathBuf) -> Result<(), TchError>,
) -> Result<(), TchError> {
    match session::current() {
        None => write(path.to_owned()),
        Some(session) => on_main(&session, path, write),
    }
}

fn on_main(
    session: &Session,
    path: &Path,
    write: impl FnOnce(PathBuf) -> Result<(), TchError>,
) -> Result<(), TchError> {
    let outcome = session.collective(Operation::Save, 0, |group| {
        // Rank 0, unless it has returned while others go on.
        let lead = group.lead();
        let own = if group.is_lead() {
            write_whole(path, write).err().unwrap_or_default()
        } else {
            String::new()
        };
        let (control, watch) = group.control();
        Ok(control.gather_texts(watch, &own)?.swap_remove(lead))
    });
    match outcome {
        Ok(text) if text.is_empty() => Ok(()),
        Ok(text) => Err(TchError::Torch(text)),
        Err(error) => Err(TchError::Torch(error.to_string())),
    }
}

/// Writes under another name, then renames. The error is a text, since it travels to the other ranks.
fn write_whole(
    path: &Path,
    write: impl FnOnce(PathBuf) -> Result<(), TchError>,
) -> Result<(), String> {
    let partial = partial_name(path);
    let result = write(partial.clone()).map_err(|error| error.to_string()).and_then(|()| {
        std::fs::rename(&partial, path).map_err(|error| {
            format!("renaming {} to {}: {error}", partial.display(), path.display())
        })
    });
    if result.is_err() {
        // The error is what counts; a leftover is only untidy.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// The name a file has until it is complete: hidden, in the same folder, with the same ending (tch takes the format from it).
fn partial_name(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut name = format!(".{stem}.partial-{}", std::process::id());
    if let Some(ending) = path.extension() {
        name.push('.');
        name.push_str(&ending.to_string_lossy());
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partial_file_keeps_folder_and_ending() {
        let name = partial_name(Path::new("runs/best.model.safetensors"));
        assert_eq!(name.parent(), Some(Path::new("runs")));
        assert_eq!(name.extension().unwrap(), "safetensors");
        assert_ne!(name, Path::new("runs/best.model.safetensors"));
    }

    #[test]
    fn p29_a_failed_write_leaves_neither_file() {
        let folder = std::env::temp_dir().join(format!("ddp-save-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("weights.ot");
        let error = write_whole(&path, |partial| {
            std::fs::write(&partial, "half").unwrap();
            Err(TchError::Torch("disk full".to_owned()))
        })
        .unwrap_err();
        assert!(error.contains("disk full"));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
