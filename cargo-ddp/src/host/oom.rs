//! Whether the kernel's out-of-memory killer has been at work in this control group.

use std::fs;
use std::path::{Path, PathBuf};

/// The counter as it stood at the start of a job.
pub(crate) struct OomWatch {
    counter: Option<(PathBuf, u64)>,
}

impl OomWatch {
    /// Notes the counter of this process's own control group; those above it count the processes of
    /// strangers too. Without control groups of version 2 there is none, and nothing is reported.
    pub(crate) fn start() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let file = group.map(|path| Path::new("/sys/fs/cgroup").join(path).join("memory.events"));
        Self { counter: file.and_then(|file| Some((file.clone(), read(&file)?))) }
    }

    /// Whether a process of the group was killed for memory since the start.
    pub(crate) fn has_killed(&self) -> bool {
        let counter = self.counter.as_ref();
        counter.is_some_and(|(file, before)| read(file).is_some_and(|now| now > *before))
    }
}

fn read(file: &Path) -> Option<u64> {
    kills(&fs::read_to_string(file).ok()?)
}

/// The number of processes killed, in a `memory.events`.
fn kills(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_has_moved_is_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.events");
        let write = |count: u64| {
            fs::write(&file, format!("low 0\noom 9\noom_kill {count}\noom_group_kill 0\n"))
                .unwrap();
        };
        write(3);
        let watch = OomWatch { counter: Some((file.clone(), read(&file).unwrap())) };
        assert!(!watch.has_killed());
        write(4);
        assert!(watch.has_killed());
    }

    #[test]
    fn a_file_without_the_counter_says_nothing() {
        assert_eq!(kills("oom 3\n"), None);
        assert_eq!(kills("oom_kill x\n"), None);
    }
}
