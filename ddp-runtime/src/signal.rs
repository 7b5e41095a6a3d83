//! Requests to stop: SIGTERM and SIGUSR1 do not end the process but make `should_stop` true, on all ranks.
//!
//! A scheduler announces the end of a job by a signal: SIGTERM, or with SLURM's `--signal=USR1@120` SIGUSR1. It may reach one
//! rank only, or the launcher, which passes it on. Whoever gets it votes to stop at its next
//! [`should_stop`](crate::should_stop), so all ranks stop after the same step, save, and leave together.
//!
//! Signals are listened to from the first `should_stop` of a scope with more than one rank until that scope ends, since only a
//! program that asks can answer; a single process is listened for only once it has called [`stop_on_signals`]. At all other
//! times they end the process as they always did. They also do once the grace time is over (`DDP_GRACE` seconds since the first
//! one, 30 unless set; `cargo ddp run --grace` sets it): until then repetitions are ignored, as schedulers repeat themselves.
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ddp_env::names;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};
use crate::output;
use crate::session;
use crate::world;

const SIGNALS: [i32; 2] = [SIGTERM, SIGUSR1];

struct State {
    /// Whether the thread that waits for signals has been started.
    started: bool,
    asked_by_program: bool,
    asked_by_scope: bool,
    grace: Duration,
    /// When the first signal came.
    since: Option<Instant>,
}

static STATE: Mutex<State> = Mutex::new(State {
    started: false,
    asked_by_program: false,
    asked_by_scope: false,
    grace: Duration::from_secs(30),
    since: None,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGTERM and SIGUSR1 make [`should_stop`](crate::should_stop) true instead of ending the process, also in a single
/// process. In a scope of more than one rank nobody needs to call it.
///
/// Starts one thread, once.
///
/// # Errors
/// [`Error::Option`] when `DDP_GRACE` is no number of seconds, [`Error::Setup`] when the signals cannot be listened to.
pub fn stop_on_signals() -> Result<()> {
    let mut state = state();
    state.start()?;
    state.asked_by_program = true;
    Ok(())
}

/// Whether a scheduler has asked *this* process to stop, as far as it listens. [`should_stop`](crate::should_stop) asks all
/// ranks.
#[must_use]
pub fn stop_requested() -> bool {
    state().since.is_some()
}

/// A scope of more than one rank asks whether to stop.
pub(crate) fn listen_in_scope() -> Result<()> {
    let mut state = state();
    if !state.asked_by_scope && session::current().is_some() {
        state.start()?;
        state.asked_by_scope = true;
    }
    Ok(())
}

/// The outermost scope ends.
pub(crate) fn leave_scope() {
    state().asked_by_scope = false;
}

impl State {
    fn start(&mut self) -> Result<()> {
        if self.started {
            return Ok(());
        }
        self.grace = grace(std::env::var(names::DDP_GRACE).ok().as_deref())?;
        let failed = |error: std::io::Error| Error::setup("listening to signals", error);
        let mut signals = Signals::new(SIGNALS).map_err(failed)?;
        std::thread::Builder::new()
            .name("ddp-signals".to_owned())
            .spawn(move || signals.forever().for_each(received))
            .map_err(failed)?;
        self.started = true;
        Ok(())
    }

    /// What a signal means at `now`: a request that counts, or the end of the process.
    fn accepts(&mut self, now: Instant) -> bool {
        let listened_to = self.asked_by_program || self.asked_by_scope;
        let in_time = self.since.is_none_or(|since| now.duration_since(since) <= self.grace);
        if listened_to && in_time {
            self.since.get_or_insert(now);
        }
        listened_to && in_time
    }
}

fn received(signal: i32) {
    let (first, accepted) = {
        let state = &mut *state();
        (state.since.is_none(), state.accepts(Instant::now()))
    };
    if !accepted {
        // What would have happened without this thread. It does not return.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    } else if first {
        let name = if signal == SIGTERM { "SIGTERM" } else { "SIGUSR1" };
        output::notice(format_args!(
            "rank {} was sent {name}: the next `should_stop` is true",
            world::rank()
        ));
    }
}

fn grace(value: Option<&str>) -> Result<Duration> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(Duration::from_secs(30));
    };
    value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(
        || Error::Option {
            name: names::DDP_GRACE,
            value: value.to_owned(),
            expected: "write a number of seconds, not negative",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p24_a_signal_is_a_request_within_the_grace_time_and_the_end_after_it() {
        let mut state = State {
            started: false,
            asked_by_program: false,
            asked_by_scope: false,
            grace: Duration::from_secs(30),
            since: None,
        };
        let now = Instant::now();
        assert!(!state.accepts(now) && state.since.is_none(), "nobody listens");
        state.asked_by_scope = true;
        assert!(state.accepts(now));
        assert!(state.accepts(now + Duration::from_secs(29)), "schedulers repeat themselves");
        assert!(!state.accepts(now + Duration::from_secs(31)));
        state.asked_by_scope = false;
        assert!(!state.accepts(now), "the scope is over");
    }

    #[test]
    fn the_grace_time_is_a_number_of_seconds() {
        assert_eq!(grace(None).unwrap(), Duration::from_secs(30));
        assert_eq!(grace(Some("0.5")).unwrap(), Duration::from_millis(500));
        assert!(grace(Some("-1")).unwrap_err().to_string().starts_with("DDP_GRACE"));
    }
}
