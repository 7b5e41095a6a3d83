//! The keeper: a small helper process that cleans up when the launcher itself is killed.
//!
//! The kernel ends the ranks with the launcher (see `spawn`), but not what the ranks have started.
//! The keeper holds the reading end of a pipe. When that ends without a farewell, the launcher is
//! gone: the keeper ends all process groups of the job, and whatever else carries its mark.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use ddp_env::names;
use rustix::process::{Pid, Signal};

use super::{spawn, sweep};
use crate::error::RunError;

/// First argument of the keeper's command line.
pub(crate) const ARGUMENT: &str = "__keep";

const FAREWELL: &str = "done";

/// The launcher's side.
pub(super) struct Keeper {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Keeper {
    pub(super) fn start(report_dir: &Path) -> Result<Self, RunError> {
        // The path of the executable may have been written anew by a build; this still is it.
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).arg(report_dir);
        // Without a job around it that could take it for one of its own.
        command.env_remove(names::DDP_REPORT_DIR);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        spawn::detach(&mut command);
        let mut process = command
            .spawn()
            .map_err(|source| RunError::System { action: "start the job's keeper", source })?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    /// Tells of a process group of the job. A keeper that is gone is no reason to end the job: the
    /// ranks still end with the launcher.
    pub(super) fn watch(&mut self, group: u32) {
        self.say(&group.to_string());
    }

    /// The job is over and cleaned up.
    pub(super) fn dismiss(mut self) {
        self.say(FAREWELL);
    }

    fn say(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Drop for Keeper {
    /// Waits for the keeper's end, so that it does not outlive the launcher: at once after a
    /// farewell, and otherwise when it has cleaned up.
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.process.wait();
    }
}

/// The keeper's own main function.
pub(crate) fn keep(args: &[OsString]) -> ExitCode {
    let Some(report_dir) = args.first().map(PathBuf::from) else { return ExitCode::FAILURE };
    let mut groups = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        match line.as_deref() {
            Ok(FAREWELL) => return ExitCode::SUCCESS,
            Ok(group) => groups.extend(group.parse().ok().and_then(Pid::from_raw)),
            Err(_) => break,
        }
    }
    for group in groups {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    sweep::sweep(&report_dir);
    // The launcher would have removed it.
    let _ = std::fs::remove_dir_all(&report_dir);
    ExitCode::SUCCESS
}
