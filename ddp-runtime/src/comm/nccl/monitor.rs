//! The thread that ends what hangs: it looks at the communicator, at what is under way, and at the notices of other ranks.
//!
//! The host does not wait for collectives, so it can be anywhere when one fails: most likely inside libtorch, waiting for the GPU,
//! where nobody can reach it. Aborting the communicator lets the GPU go on; the next operation of the scope then returns the
//! failure. A program that reaches none within [`GRACE`] is ended.
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::lane::Lane;
use crate::error::{Error, Result};
use crate::watch::Eyes;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the program may take to reach its next operation after a failure, before the process is ended.
const GRACE: Duration = Duration::from_secs(30);

/// Whether the thread is to stop.
#[derive(Default)]
struct Stop {
    now: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    /// Sleeps for a while; whether to stop.
    fn after(&self, time: Duration) -> bool {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, _) = self
            .wake
            .wait_timeout_while(now, time, |now| !*now)
            .unwrap_or_else(PoisonError::into_inner);
        *now
    }
}

/// The running thread.
pub(super) struct Monitor {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to look after a lane. `end` ends the process with the failure that nobody asked for.
    pub(super) fn start(
        lane: Arc<Lane>,
        eyes: Eyes,
        end: impl FnOnce(&Fault) + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(Stop::default());
        let thread = std::thread::Builder::new()
            .name("ddp-nccl".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || watch_over(&lane, &eyes, &stop, end)
            })
            .map_err(|error| Error::setup("starting the thread that looks after NCCL", error))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread.
    pub(super) fn stop(&mut self) {
        *self.stop.now.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

fn watch_over(lane: &Lane, eyes: &Eyes, stop: &Stop, end: impl FnOnce(&Fault)) {
    let bound = lane.bind();
    let fault = bound.err().or_else(|| first_fault(lane, eyes, stop));
    let Some(fault) = fault else { return };
    lane.give_up(fault);
    let deadline = Instant::now() + GRACE;
    while let Some(fault) = lane.untold() {
        if stop.after(LOOK_EVERY) {
            return;
        }
        if Instant::now() > deadline {
            return end(&fault);
        }
    }
}

/// Looks until something has failed; nothing when it is told to stop first.
fn first_fault(lane: &Lane, eyes: &Eyes, stop: &Stop) -> Option<Fault> {
    while !stop.after(LOOK_EVERY) {
        if let Err(fault) = lane.look() {
            return Some(fault);
        }
        if let Some(notice) = eyes.notice() {
            return Some(Fault::Peer { what: "a collective".to_owned(), message: notice.message });
        }
    }
    None
}
