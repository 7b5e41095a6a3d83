//! Ends what a job has left behind, wherever it has moved.
//!
//! A process that a rank has started can leave the rank's process group, and its parent can die.
//! What it keeps is its environment: the name of the job's report folder, which no other job has.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ddp_env::names;
use rustix::process::{Pid, PidfdFlags, Signal};

/// How long is tried; a process that starts others without end could win otherwise.
const LIMIT: Duration = Duration::from_secs(2);

/// Kills every process of the job with this report folder.
pub(super) fn sweep(report_dir: &Path) {
    let mut mark = format!("{}=", names::DDP_REPORT_DIR).into_bytes();
    mark.extend_from_slice(report_dir.as_os_str().as_bytes());
    super::poll(LIMIT, || kill_marked(&mark) == 0);
}

/// Kills the processes whose environment has `mark` in it; their number.
fn kill_marked(mark: &[u8]) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(|pid| kill_if_marked(*pid, mark))
        .count()
}

/// The descriptor is opened before the environment is read: the signal cannot reach a process that
/// was given the same id in between.
fn kill_if_marked(pid: Pid, mark: &[u8]) -> bool {
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // Empty for a process that has ended; not to be read for one of another user.
    let Ok(environ) = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    environ.split(|byte| *byte == 0).any(|variable| variable == mark)
        && rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok()
}
