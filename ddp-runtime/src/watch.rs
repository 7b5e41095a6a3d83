//! The watcher: knows within a second when a rank has failed, and ends every wait.
//!
//! A rank that fails writes a notice into the store. On each rank a thread looks for it; [`Watch::wait`], through which
//! every wait for other ranks goes, looks at what the thread has seen. A rank that dies without a word is noticed by its
//! connections closing (by the transport), or, if it was the one that serves the store, by the thread itself.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::bridge::{BridgeError, TcpStore};
use crate::comm::Work;
use crate::error::{Error, Result, Who};

/// How often the store is asked for a notice.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long one wait for a transport lasts before the notices are looked at.
const SLICE: Duration = Duration::from_millis(100);
/// How long a closed connection may be ahead of the notice that explains it.
const NOTICE_DELAY: Duration = Duration::from_millis(1500);

/// What a failing rank tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Who failed.
    pub(crate) rank: Option<usize>,
    /// Its message.
    pub(crate) message: String,
}

impl Notice {
    fn encode(&self) -> Vec<u8> {
        let rank = self.rank.map_or_else(String::new, |rank| rank.to_string());
        format!("{rank}\n{}", self.message).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (rank, message) = text.split_once('\n').unwrap_or(("", &text));
        Self { rank: rank.parse().ok(), message: message.to_owned() }
    }
}

/// What a wait for another rank came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It has done what it was waited for.
    Asked,
    /// It will not any more.
    Never,
}

#[derive(Default)]
struct Seen {
    notice: Option<Notice>,
    stop: bool,
}

struct Shared {
    seen: Mutex<Seen>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sees what the watcher has seen.
#[cfg_attr(
    not(feature = "nccl"),
    expect(dead_code, reason = "only GPUs need a thread of their own")
)]
pub(crate) struct Eyes {
    shared: Arc<Shared>,
}

#[cfg_attr(
    not(feature = "nccl"),
    expect(dead_code, reason = "only GPUs need a thread of their own")
)]
impl Eyes {
    /// The notice of another rank's failure, if there is one.
    pub(crate) fn notice(&self) -> Option<Notice> {
        self.shared.lock().notice.clone()
    }
}

/// The eyes of one rank on all others.
pub(crate) struct Watch {
    store: Arc<TcpStore>,
    group: String,
    key: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    limit: Duration,
}

impl Watch {
    /// Starts looking for notices of the group called `group`. No wait lasts longer than `limit`.
    pub(crate) fn start(store: Arc<TcpStore>, group: &str, limit: Duration) -> Result<Self> {
        let key = format!("{group}/failure");
        let shared = Arc::new(Shared { seen: Mutex::new(Seen::default()), wake: Condvar::new() });
        let thread = std::thread::Builder::new()
            .name("ddp-watch".to_owned())
            .spawn({
                let (store, key, shared) = (Arc::clone(&store), key.clone(), Arc::clone(&shared));
                move || look(&store, &key, &shared)
            })
            .map_err(|error| Error::setup("starting the watcher thread", error))?;
        Ok(Self { store, group: group.to_owned(), key, shared, thread: Some(thread), limit })
    }

    /// Tells all ranks that this one has failed. The first notice stands.
    ///
    /// A process that serves the store stays until the others have had the time to read it.
    pub(crate) fn report(&self, notice: &Notice, serves_store: bool) {
        // A store that cannot be reached has taken its ranks with it: there is nobody left to tell.
        if let Ok(false) = self.store.contains(&self.key) {
            let _ = self.store.set(&self.key, &notice.encode());
        }
        if serves_store {
            std::thread::sleep(2 * LOOK_EVERY);
        }
    }

    /// The notice of another rank's failure, if there is one.
    pub(crate) fn notice(&self) -> Option<Notice> {
        self.shared.lock().notice.clone()
    }

    /// What sees the notices too, on another thread.
    #[cfg_attr(
        not(feature = "nccl"),
        expect(dead_code, reason = "only GPUs need a thread of their own")
    )]
    pub(crate) fn eyes(&self) -> Eyes {
        Eyes { shared: Arc::clone(&self.shared) }
    }

    /// Says that `what` is done, for those that [`wait_until_done`](Self::wait_until_done).
    pub(crate) fn mark_done(&self, what: &str) -> Result<()> {
        let key = format!("{}/done/{what}", self.group);
        self.store.set(&key, b"done").map_err(|error| self.explain(what, &error))
    }

    /// Waits until another rank has said that `what` is done, as long as no rank fails: without a limit. Once that rank has
    /// said that `never` is done, it has nothing more to say.
    pub(crate) fn wait_until_done(&self, what: &str, never: &str) -> Result<Done> {
        let done = |what: &str| {
            let key = format!("{}/done/{what}", self.group);
            self.store.contains(&key).map_err(|error| self.explain(what, &error))
        };
        loop {
            // In this order: what is asked for was done before the other.
            let over = done(never)?;
            if done(what)? {
                return Ok(Done::Asked);
            }
            if over {
                return Ok(Done::Never);
            }
            if let Some(notice) = self.notice() {
                return Err(peer_failed(what, notice));
            }
            std::thread::sleep(SLICE);
        }
    }

    /// Waits for an operation, until it is done, a rank has failed, or the limit is reached.
    ///
    /// On a GPU the device waits for it, and the host goes on: see [`Work::hand_over`].
    pub(crate) fn wait(&self, work: &dyn Work, operation: &str) -> Result<()> {
        if work.hand_over().map_err(|error| self.explain(operation, &error))? {
            return Ok(());
        }
        let started = Instant::now();
        loop {
            match work.wait(SLICE) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(self.explain(operation, &error)),
            }
            if let Some(notice) = self.notice() {
                return Err(peer_failed(operation, notice));
            }
            if started.elapsed() > self.limit {
                return Err(Error::Timeout { operation: operation.to_owned(), limit: self.limit });
            }
        }
    }

    /// Whether an operation is done, without waiting.
    pub(crate) fn poll(&self, work: &dyn Work, operation: &str) -> Result<bool> {
        work.is_done().map_err(|error| self.explain(operation, &error))
    }

    /// What stands behind a transport's error: the notice of the rank that failed, if one comes soon.
    pub(crate) fn explain(&self, operation: &str, error: &BridgeError) -> Error {
        let deadline = Instant::now() + NOTICE_DELAY;
        while Instant::now() < deadline {
            if let Some(notice) = self.notice() {
                return peer_failed(operation, notice);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = error.to_string();
        if error.is_of_this_rank() {
            return Error::Transport { operation: operation.to_owned(), message: text };
        }
        if text.contains("Timed out") || text.contains("timed out") {
            return Error::Timeout { operation: operation.to_owned(), limit: self.limit };
        }
        Error::Peer {
            operation: operation.to_owned(),
            who: Who::Another,
            message: format!("it left no message; the transport says: {text}"),
        }
    }
}

fn peer_failed(operation: &str, notice: Notice) -> Error {
    Error::Peer {
        operation: operation.to_owned(),
        who: notice.rank.map_or(Who::Another, Who::Rank),
        message: notice.message,
    }
}

fn look(store: &TcpStore, key: &str, shared: &Shared) {
    loop {
        let notice = match store.contains(key) {
            Ok(false) => None,
            Ok(true) => Some(match store.get(key, LOOK_EVERY) {
                Ok(bytes) => Notice::decode(&bytes),
                Err(error) => store_lost(&error),
            }),
            Err(error) => Some(store_lost(&error)),
        };
        let mut seen = shared.lock();
        if seen.stop {
            return;
        }
        if notice.is_some() {
            seen.notice = notice;
            return;
        }
        let (seen, _) = shared
            .wake
            .wait_timeout_while(seen, LOOK_EVERY, |seen| !seen.stop)
            .unwrap_or_else(PoisonError::into_inner);
        if seen.stop {
            return;
        }
    }
}

fn store_lost(error: &BridgeError) -> Notice {
    Notice {
        rank: None,
        message: format!(
            "the process that serves the store (rank 0, or the launcher's agent) is gone: {error}"
        ),
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread holds no lock over a blocking call; a panic in it has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_the_store() {
        for notice in [
            Notice { rank: Some(3), message: "diverged\nin epoch 2".to_owned() },
            Notice { rank: None, message: String::new() },
        ] {
            assert_eq!(Notice::decode(&notice.encode()), notice);
        }
    }
}
