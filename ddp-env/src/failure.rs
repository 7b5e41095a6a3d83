//! What a failing rank leaves behind, so that the user is told the first failure and not the last.
//!
//! A rank that fails writes one [`FailureRecord`] into the launcher's report folder; the launcher
//! reads them all when the job is over and asks [`root_cause`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What kind of failure a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The training function returned an error.
    Error,
    /// The training function panicked.
    Panic,
    /// The group could not be set up.
    Setup,
    /// Another rank had failed or left: a consequence, never a cause.
    Peer,
    /// A wait for the other ranks ran into its limit.
    Timeout,
    /// The ranks did different things.
    Mismatch,
    /// The process was ended by a signal; written by the launcher, since the process could not.
    Killed,
}

/// The failure of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// The rank that failed.
    pub rank: usize,
    /// What kind of failure it was.
    pub kind: FailureKind,
    /// What the rank was doing, in the user's terms: `train`, `save`, `gradients of a bucket`.
    pub operation: String,
    /// The text of the error.
    pub message: String,
    /// Where in the user's source, as `file:line`, if that is known.
    pub place: Option<String>,
    /// When, in milliseconds since the Unix epoch, by the clock of the rank's host.
    pub unix_ms: u64,
}

/// A report folder that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The file system refused.
    #[error("failure records: cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The answer of the file system.
        source: io::Error,
    },
    /// A file is no failure record: launcher and program were built from different versions.
    #[error(
        "failure records: {} is not one ({source}); build launcher and program from one version",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Leaves `record` in `dir`. The first record of a rank stays: what follows it is a consequence.
///
/// The file appears complete or not at all, also when the process is killed while it writes.
///
/// # Errors
///
/// [`ReportError::Io`] when the folder is not there or cannot be written.
pub fn write(dir: &Path, record: &FailureRecord) -> Result<(), ReportError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let at = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::Io { action, path, source }
    };
    let target = dir.join(format!("rank-{}.json", record.rank));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary =
        dir.join(format!("rank-{}.{}-{number}.partial", record.rank, std::process::id()));
    let text = serde_json::to_vec(record)
        .map_err(|source| ReportError::Format { path: target.clone(), source })?;
    fs::write(&temporary, text).map_err(at("write", &temporary))?;
    // A link, unlike a rename, does not replace what is already there.
    let linked = match fs::hard_link(&temporary, &target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no links; there, two threads of one rank could race.
        Err(_) if !target.exists() => fs::rename(&temporary, &target).map_err(at("name", &target)),
        other => other.map_err(at("name", &target)),
    };
    // What is left over has a name that no reader looks at, so failing to remove it does no harm.
    let _ = fs::remove_file(&temporary);
    linked
}

/// All records in `dir`, by rank. A folder without records gives an empty list.
///
/// # Errors
///
/// [`ReportError`] when the folder cannot be listed, or a file named like a record cannot be read.
pub fn read_all(dir: &Path) -> Result<Vec<FailureRecord>, ReportError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::Io { action, path, source }
    };
    let mut records: Vec<FailureRecord> = Vec::new();
    for entry in fs::read_dir(dir).map_err(io("list", dir))? {
        let path = entry.map_err(io("list", dir))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read(&path).map_err(io("read", &path))?;
        let record = serde_json::from_slice(&text)
            .map_err(|source| ReportError::Format { path: path.clone(), source })?;
        records.push(record);
    }
    records.sort_by_key(|record| record.rank);
    Ok(records)
}

/// The record that the others follow from: the earliest that is no [`FailureKind::Peer`], else the
/// earliest. Of two with the same time, the one with the lower rank.
#[must_use]
pub fn root_cause(records: &[FailureRecord]) -> Option<&FailureRecord> {
    records
        .iter()
        .min_by_key(|record| (record.kind == FailureKind::Peer, record.unix_ms, record.rank))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(rank: usize, kind: FailureKind, unix_ms: u64) -> FailureRecord {
        FailureRecord {
            rank,
            kind,
            operation: "train".to_owned(),
            message: format!("rank {rank} says \u{1b} \"no\"\nand more"),
            place: None,
            unix_ms,
        }
    }

    #[test]
    fn records_come_back_as_written_by_rank() {
        let dir = tempfile::tempdir().unwrap();
        let written: Vec<_> = (0..12).map(|rank| record(rank, FailureKind::Error, 5)).collect();
        for one in written.iter().rev() {
            write(dir.path(), one).unwrap();
        }
        assert_eq!(read_all(dir.path()).unwrap(), written);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 12, "no temporary file is left");
    }

    #[test]
    fn the_first_record_of_a_rank_stays() {
        let dir = tempfile::tempdir().unwrap();
        let first = record(3, FailureKind::Panic, 9);
        write(dir.path(), &first).unwrap();
        write(dir.path(), &record(3, FailureKind::Peer, 1)).unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), [first]);
    }

    #[test]
    fn an_unfinished_file_is_not_read_and_a_foreign_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rank-0.7-0.partial"), "{\"ra").unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), []);
        fs::write(dir.path().join("rank-0.json"), "{\"ra").unwrap();
        let text = read_all(dir.path()).unwrap_err().to_string();
        assert!(text.contains("rank-0.json is not one"), "{text}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap().path().join("gone");
        let text = write(&dir, &record(0, FailureKind::Error, 0)).unwrap_err().to_string();
        assert!(text.contains("cannot write") && text.contains("gone"), "{text}");
        assert!(read_all(&dir).is_err());
    }

    #[test]
    fn p26_a_peer_is_never_the_cause_while_there_is_another() {
        let records = [
            record(0, FailureKind::Peer, 1),
            record(1, FailureKind::Timeout, 7),
            record(2, FailureKind::Error, 5),
            record(3, FailureKind::Error, 5),
        ];
        assert_eq!(root_cause(&records).unwrap().rank, 2);
        assert_eq!(root_cause(&records[..1]).unwrap().rank, 0);
        assert_eq!(root_cause(&[]), None);
    }

    #[test]
    fn kinds_are_written_as_words() {
        let text = serde_json::to_string(&FailureKind::Timeout).unwrap();
        assert_eq!(text, "\"timeout\"");
    }

    proptest! {
        #[test]
        fn the_cause_does_not_depend_on_the_order(
            times in prop::collection::vec((0_u64..5, 0_usize..3), 1..8), turn in 0_usize..8,
        ) {
            let kinds = [FailureKind::Peer, FailureKind::Error, FailureKind::Killed];
            let mut records: Vec<_> = times
                .iter()
                .enumerate()
                .map(|(rank, (time, kind))| record(rank, kinds[*kind], *time))
                .collect();
            let cause = root_cause(&records).unwrap().clone();
            let turn = turn % records.len();
            records.rotate_left(turn);
            prop_assert_eq!(root_cause(&records), Some(&cause));
        }
    }
}
