//! What a failing rank leaves for the launcher, so that the first failure is what the user reads last.
use std::cell::RefCell;
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

use ddp_env::failure::{self, FailureKind, FailureRecord};

use crate::error::Error;
use crate::world;

/// A panic of this thread.
#[derive(Clone, Debug)]
pub(crate) struct Panic {
    /// Its message.
    pub(crate) message: String,
    /// `file:line` of the panic.
    pub(crate) place: Option<String>,
}

thread_local! {
    static LAST_PANIC: RefCell<Option<Panic>> = const { RefCell::new(None) };
}

/// Remembers each panic's message and place from now on; it is printed as before.
pub(crate) fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
            let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
            LAST_PANIC.with(|slot| *slot.borrow_mut() = Some(Panic { message, place }));
            before(info);
        }));
    });
}

/// The last panic of this thread.
pub(crate) fn last_panic() -> Option<Panic> {
    LAST_PANIC.with(|slot| slot.borrow().clone())
}

/// A record with the time of now.
pub(crate) fn record(
    rank: usize,
    kind: FailureKind,
    operation: String,
    message: String,
    place: Option<String>,
) -> FailureRecord {
    let unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    FailureRecord { rank, kind, operation, message, place, unix_ms }
}

/// Leaves a record where the launcher looks for it, if there is a launcher that does.
pub(crate) fn write(record: &FailureRecord) {
    if let Ok(Some(launch)) = world::launch()
        && let Some(dir) = &launch.report_dir
    {
        // The error itself is on its way to the user; that its copy could not be left must not hide it.
        let _ = failure::write(dir, record);
    }
}

/// The kind of failure that an error is.
pub(crate) fn kind(error: &Error) -> FailureKind {
    match error {
        Error::Environment(_) | Error::Option { .. } | Error::Setup { .. } => FailureKind::Setup,
        Error::Peer { .. } => FailureKind::Peer,
        Error::Timeout { .. } => FailureKind::Timeout,
        Error::Mismatch { .. } => FailureKind::Mismatch,
        Error::Unsupported { .. }
        | Error::Replica { .. }
        | Error::Poisoned { .. }
        | Error::Transport { .. }
        | Error::Checkpoint { .. }
        | Error::Torch { .. } => FailureKind::Error,
    }
}

/// The exit code of a process that ends with an error.
pub(crate) fn exit_code(error: &Error) -> u8 {
    match kind(error) {
        FailureKind::Setup => ddp_env::exit::SETUP_FAILED,
        FailureKind::Peer => ddp_env::exit::PEER_FAILED,
        FailureKind::Timeout => ddp_env::exit::TIMED_OUT,
        FailureKind::Mismatch => ddp_env::exit::MISMATCH,
        _ => 1,
    }
}
