//! Starting one rank, in a way that it cannot outlive the launcher.
#![allow(unsafe_code)] // `pre_exec` is the only way to set these things up in the new process

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use super::plan::Plan;
use crate::error::RunError;

/// Starts rank `local_rank` of this host, in a process group of its own.
///
/// Must be called on the launcher's main thread: the kernel ties the parent-death signal to the
/// thread that forked.
pub(super) fn rank(
    plan: &Plan,
    local_rank: usize,
    [stdout, stderr]: [Stdio; 2],
    listener: Option<&TcpListener>,
) -> Result<Child, RunError> {
    let rank = plan.hosts.rank(local_rank);
    let listen_fd = listener.map(AsRawFd::as_raw_fd);
    let env = plan.env(local_rank, listen_fd, &|name| std::env::var_os(name));
    let mut command = Command::new(&plan.program.path);
    command.args(&plan.args).envs(env.set).stdin(stdin(rank)).stdout(stdout).stderr(stderr);
    for name in env.remove {
        command.env_remove(name);
    }
    command.process_group(0);
    let launcher = rustix::process::getpid();
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe functions may
    // be called: it makes plain system calls and neither allocates nor locks. The descriptor stays
    // open in the launcher until `spawn` has returned, since `listener` is borrowed until then.
    unsafe {
        command.pre_exec(move || in_child(launcher, listen_fd));
    }
    let program = plan.program.path.clone();
    command.spawn().map_err(|source| RunError::Spawn { rank, program, source })
}

/// Input goes to rank 0. Not from a terminal: a read from the background of it stops the process.
fn stdin(rank: usize) -> Stdio {
    use std::io::IsTerminal;
    if rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

/// What the new process does before it becomes the program.
fn in_child(launcher: Pid, listen_fd: Option<i32>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The launcher may have died before the line above.
    if rustix::process::getppid() != Some(launcher) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: SIG_IGN is a valid disposition. The rank is in the background of its terminal, and a
    // change of the terminal's settings (or any output, after `stty tostop`) would stop it.
    if unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    if let Some(fd) = listen_fd {
        // SAFETY: the descriptor is open, see `rank`.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    Ok(())
}

/// Makes the process that `command` starts the leader of a session of its own, out of reach of the
/// terminal's signals.
pub(super) fn detach(command: &mut Command) {
    // SAFETY: `setsid` is one system call, see `rank` for the rule.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::setsid().map(|_session| ())?));
    }
}

/// The ranks of this host. They are reaped at the very end, so that no process id is given to
/// another process while signals may still be sent to it.
#[derive(Default)]
pub(super) struct Children {
    ranks: Vec<(usize, Child)>,
}

impl Children {
    pub(super) fn push(&mut self, rank: usize, child: Child) {
        self.ranks.push((rank, child));
    }

    /// Rank and process id of each.
    pub(super) fn ids(&self) -> impl Iterator<Item = (usize, Pid)> {
        self.ranks.iter().map(|(rank, child)| (*rank, Pid::from_child(child)))
    }

    /// Asks the ranks to end. Only the rank itself is asked: what it has started it may need to
    /// finish its work.
    pub(super) fn terminate(&self) {
        for (_, pid) in self.ids() {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    /// Passes SIGUSR1 on, by which schedulers announce the end of a job.
    pub(super) fn announce(&self) {
        for (_, pid) in self.ids() {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, Signal::USR1);
        }
    }

    /// Ends the ranks and what they have started.
    pub(super) fn kill_groups(&self) {
        for (_, pid) in self.ids() {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Takes the ranks off the process table. One that the kernel cannot end (a driver that does
    /// not answer) is left to it.
    pub(super) fn reap(&mut self) {
        super::poll(std::time::Duration::from_secs(2), || {
            self.ranks.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
            self.ranks.is_empty()
        });
    }
}
