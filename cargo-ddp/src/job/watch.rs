//! Exits, signals and the clock, brought to the supervisor one after the other.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals as Received;

use super::spawn::Children;
use super::supervise::{Action, Ended, Limits, Outcome, Request, Supervisor};
use super::unix_ms;
use crate::error::RunError;

enum Event {
    Exit {
        rank: usize,
        ended: Ended,
        unix_ms: u64,
        at: Instant,
    },
    Request(Request),
    /// SIGUSR1, which is the ranks' own affair.
    Announcement,
}

/// The signals to the launcher, collected from before the first rank starts.
pub(super) struct Signals(Received);

impl Signals {
    pub(super) fn listen() -> Result<Self, RunError> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // What is ignored (nohup, a shell's background) has to stay so.
        let wanted =
            [SIGINT, SIGTERM, SIGHUP, SIGUSR1].into_iter().filter(|s| !is_ignored(&status, *s));
        Received::new(wanted)
            .map(Self)
            .map_err(|source| RunError::System { action: "listen to signals", source })
    }
}

/// Whether `/proc/<pid>/status` says that a signal is ignored.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Watches the ranks to the end of the last one.
pub(super) fn watch(
    signals: Signals,
    children: &Children,
    limits: Limits,
) -> Result<Outcome, RunError> {
    let (sender, events) = mpsc::channel();
    forward_signals(signals, sender.clone())?;
    for (rank, pid) in children.ids() {
        wait_for(rank, pid, sender.clone())?;
    }
    drop(sender);
    let mut supervisor = Supervisor::new(children.ids().map(|(rank, _)| rank), limits);
    while !supervisor.is_over() {
        let next = match supervisor.deadline() {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        let action = match next {
            Ok(Event::Exit { rank, ended, unix_ms, at }) => {
                supervisor.on_exit(rank, ended, unix_ms, at)
            }
            Ok(Event::Request(request)) => supervisor.on_request(request, Instant::now()),
            Ok(Event::Announcement) => {
                children.announce();
                Action::Nothing
            }
            Err(RecvTimeoutError::Timeout) => supervisor.on_time(Instant::now()),
            // Not while a thread of above waits for a rank that still runs.
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match action {
            Action::Nothing | Action::GiveUp => {}
            Action::Terminate => children.terminate(),
            Action::Kill => children.kill_groups(),
        }
    }
    Ok(supervisor.into_outcome())
}

fn forward_signals(mut signals: Signals, events: mpsc::Sender<Event>) -> Result<(), RunError> {
    thread("signals", move || {
        for signal in signals.0.forever() {
            let event = match signal {
                SIGUSR1 => Event::Announcement,
                SIGINT => Event::Request(Request::Interrupt),
                other => Event::Request(Request::Stop(other)),
            };
            if events.send(event).is_err() {
                break;
            }
        }
    })
}

/// Waits for one rank without reaping it: its process id stays its own until all is over.
fn wait_for(rank: usize, pid: Pid, events: mpsc::Sender<Event>) -> Result<(), RunError> {
    thread(&format!("wait for rank {rank}"), move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = loop {
            match rustix::process::waitid(WaitId::Pid(pid), options) {
                Ok(Some(status)) => break ended(&status),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                // Not while it is our child and nobody else reaps it.
                Err(_) => break Ended::Code(1),
            }
        };
        let event = Event::Exit { rank, ended, unix_ms: unix_ms(), at: Instant::now() };
        // Nobody listens any more when the job was given up.
        let _ = events.send(event);
    })
}

fn ended(status: &WaitIdStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Code(1),
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(|_handle| ())
        .map_err(|source| RunError::System { action: "start a thread", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT));
        assert!(!is_ignored("", SIGHUP));
    }
}
