//! The folder of a run's checkpoints: names, order, whole or not at all.
//!
//! A checkpoint is a folder of its own, `000017-step-1200`. The first number only grows, so that the newest is the one saved
//! last, whatever step it is of. It is written under a name that nobody reads, synchronised to the disk, and renamed.
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What begins the name of a checkpoint that is not complete, or no longer.
const PARTIAL: &str = ".partial-";

/// A checkpoint in the folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) name: String,
}

impl Entry {
    fn of(name: &str) -> Option<Self> {
        let (sequence, step) = name.split_once("-step-")?;
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(sequence) || !digits(step) {
            return None;
        }
        Some(Self { sequence: sequence.parse().ok()?, name: name.to_owned() })
    }
}

/// The checkpoints in `folder`, the oldest first. A folder that is not there has none.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in listing {
        found.extend(Entry::of(&entry?.file_name().to_string_lossy()));
    }
    found.sort();
    Ok(found)
}

/// A checkpoint that is being written. Unless it is completed, dropping it removes it.
pub(super) struct Partial {
    folder: PathBuf,
    path: PathBuf,
    name: String,
    done: bool,
}

impl Partial {
    /// Begins the checkpoint of `step`; makes the folder if it is not there.
    pub(super) fn begin(folder: &Path, step: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let sequence = entries(folder)?.last().map_or(1, |newest| newest.sequence + 1);
        let name = format!("{sequence:06}-step-{step}");
        let path = folder.join(format!("{PARTIAL}{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { folder: folder.to_owned(), path, name, done: false })
    }

    /// Where its files are to be written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Brings its files to the disk and gives it its name.
    pub(super) fn complete(mut self) -> io::Result<PathBuf> {
        for file in fs::read_dir(&self.path)? {
            File::open(file?.path())?.sync_all()?;
        }
        File::open(&self.path)?.sync_all()?;
        let path = self.folder.join(&self.name);
        fs::rename(&self.path, &path)?;
        self.done = true;
        File::open(&self.folder)?.sync_all()?;
        Ok(path)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.done {
            // What is left over has a name that nobody reads; the next job tidies up.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes all but the newest `keep` checkpoints, where those in `refused` do not count.
pub(super) fn prune(folder: &Path, keep: usize, refused: &[String]) -> io::Result<()> {
    let mut good = 0;
    for entry in entries(folder)?.into_iter().rev() {
        if good >= keep {
            remove(folder, &entry.name)?;
        } else if !refused.contains(&entry.name) {
            good += 1;
        }
    }
    Ok(())
}

/// Removes a checkpoint, in such a way that nobody ever reads a part of it.
fn remove(folder: &Path, name: &str) -> io::Result<()> {
    let away = folder.join(format!("{PARTIAL}{}-{name}", std::process::id()));
    fs::rename(folder.join(name), &away)?;
    fs::remove_dir_all(away)
}

/// Removes what a job that was killed has left over. What cannot be removed stays: nobody reads it.
pub(super) fn tidy(folder: &Path) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    for entry in listing.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_folder(name: &str, body: impl FnOnce(&Path)) {
        let folder = std::env::temp_dir().join(format!("ddp-folder-{name}-{}", std::process::id()));
        body(&folder);
        fs::remove_dir_all(&folder).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        entries(folder).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn the_newest_is_the_one_saved_last() {
        in_folder("order", |folder| {
            assert_eq!(names(folder), Vec::<String>::new());
            for step in [500, 20, 100] {
                Partial::begin(folder, step).unwrap().complete().unwrap();
            }
            fs::create_dir(folder.join("notes")).unwrap();
            fs::write(folder.join("step-7"), "").unwrap();
            assert_eq!(names(folder), ["000001-step-500", "000002-step-20", "000003-step-100"]);
        });
    }

    #[test]
    fn what_was_not_completed_is_not_there() {
        in_folder("partial", |folder| {
            let partial = Partial::begin(folder, 1).unwrap();
            fs::write(partial.path().join("half"), "x").unwrap();
            assert_eq!(names(folder), Vec::<String>::new());
            drop(partial);
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
            std::mem::forget(Partial::begin(folder, 2).unwrap());
            tidy(folder);
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
        });
    }

    #[test]
    fn refused_ones_are_not_counted_among_those_that_are_kept() {
        in_folder("prune", |folder| {
            for step in 1..=5 {
                Partial::begin(folder, step).unwrap().complete().unwrap();
            }
            prune(folder, 2, &["000004-step-4".to_owned()]).unwrap();
            assert_eq!(names(folder), ["000003-step-3", "000004-step-4", "000005-step-5"]);
            prune(folder, 1, &[]).unwrap();
            assert_eq!(names(folder), ["000005-step-5"]);
        });
    }
}
