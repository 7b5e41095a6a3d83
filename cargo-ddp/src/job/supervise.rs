//! What to do when a rank ends, a signal arrives or time has passed: pure, `now` is passed in.
//!
//! ```text
//!            a rank fails                 drained              grace over
//! Running ----------------> Draining --------------> Stopping ----------> Killing -> given up
//!    \                          \______________________/ ^  \_______________/ ^
//!     \__ SIGTERM, SIGHUP, Ctrl-C ______________________/        Ctrl-C _____/
//! ```
//!
//! While draining, the others are left alone: most notice by themselves that a rank is gone, and
//! leave with an error of their own that says where they were.

use std::time::{Duration, Instant};

/// How long each phase may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// From the first failure to SIGTERM.
    pub(super) drain: Duration,
    /// From SIGTERM to SIGKILL after a failure.
    pub(super) after_failure: Duration,
    /// From SIGTERM to SIGKILL when the user or the scheduler asked for the end.
    pub(super) grace: Duration,
    /// From SIGKILL until the launcher stops waiting for a process that the kernel cannot end.
    pub(super) give_up: Duration,
}

impl Limits {
    /// The usual limits: from the first failure to the launcher's end it is less than 10 s.
    pub(super) fn with_grace(grace: Duration) -> Self {
        Self {
            drain: Duration::from_secs(3),
            after_failure: Duration::from_secs(3),
            grace,
            give_up: Duration::from_secs(2),
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    pub(super) const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

/// A signal to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Ctrl-C; a second one ends everything at once.
    Interrupt,
    /// SIGTERM or SIGHUP, by number.
    Stop(i32),
}

impl Request {
    /// The number of the signal.
    pub(super) const fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Stop(number) => number,
        }
    }
}

/// The end of one rank, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) rank: usize,
    pub(super) ended: Ended,
    /// When, in milliseconds since the Unix epoch.
    pub(super) unix_ms: u64,
    /// Whether the launcher had asked it to end before.
    pub(super) asked: bool,
}

/// What to do to all ranks that still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Terminate,
    Kill,
    /// Stop waiting.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Draining { until: Instant },
    Stopping { until: Instant },
    Killing { until: Instant },
    GivenUp,
}

/// The state of a job: who still runs, and what is being done about it.
#[derive(Debug)]
pub(super) struct Supervisor {
    phase: Phase,
    limits: Limits,
    running: Vec<usize>,
    exits: Vec<Exit>,
    request: Option<Request>,
}

/// How a job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The ends of the ranks, in their order.
    pub(super) exits: Vec<Exit>,
    /// What the user or the scheduler asked for, if that came before any failure.
    pub(super) request: Option<Request>,
    /// Ranks that the kernel has not ended.
    pub(super) stuck: Vec<usize>,
    /// Whether the kernel has killed a process of the launcher's control group for memory.
    pub(super) out_of_memory: bool,
}

impl Supervisor {
    pub(super) fn new(ranks: impl IntoIterator<Item = usize>, limits: Limits) -> Self {
        Self {
            phase: Phase::Running,
            limits,
            running: ranks.into_iter().collect(),
            exits: Vec::new(),
            request: None,
        }
    }

    /// A rank has ended.
    pub(super) fn on_exit(
        &mut self,
        rank: usize,
        ended: Ended,
        unix_ms: u64,
        now: Instant,
    ) -> Action {
        let asked = matches!(self.phase, Phase::Stopping { .. } | Phase::Killing { .. });
        self.running.retain(|running| *running != rank);
        self.exits.push(Exit { rank, ended, unix_ms, asked });
        if self.phase == Phase::Running && !ended.is_success() {
            self.phase = Phase::Draining { until: now + self.limits.drain };
        }
        Action::Nothing
    }

    /// A signal has reached the launcher.
    pub(super) fn on_request(&mut self, request: Request, now: Instant) -> Action {
        match (self.phase, request) {
            // A scheduler may signal every process of the job: a rank can have ended by that before
            // the launcher hears of it.
            (Phase::Draining { .. }, Request::Stop(_)) if self.only_asked_from_outside() => {
                self.phase = Phase::Running;
                self.on_request(request, now)
            }
            (Phase::Running, _) => {
                self.request = Some(request);
                self.phase = Phase::Stopping { until: now + self.limits.grace };
                Action::Terminate
            }
            (Phase::Draining { .. } | Phase::Stopping { .. }, Request::Interrupt) => self.kill(now),
            (Phase::Draining { .. }, Request::Stop(_)) => self.terminate(now),
            // Schedulers repeat themselves.
            (Phase::Stopping { .. }, Request::Stop(_))
            | (Phase::Killing { .. } | Phase::GivenUp, _) => Action::Nothing,
        }
    }

    /// Time has passed.
    pub(super) fn on_time(&mut self, now: Instant) -> Action {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Action::Nothing;
        }
        match self.phase {
            Phase::Running | Phase::GivenUp => Action::Nothing,
            Phase::Draining { .. } => self.terminate(now),
            Phase::Stopping { .. } => self.kill(now),
            Phase::Killing { .. } => {
                self.phase = Phase::GivenUp;
                Action::GiveUp
            }
        }
    }

    /// When [`on_time`](Self::on_time) will have something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::GivenUp => None,
            Phase::Draining { until } | Phase::Stopping { until } | Phase::Killing { until } => {
                Some(until)
            }
        }
    }

    /// Whether there is nothing left to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.running.is_empty() || self.phase == Phase::GivenUp
    }

    pub(super) fn into_outcome(self) -> Outcome {
        Outcome {
            exits: self.exits,
            request: self.request,
            stuck: self.running,
            out_of_memory: false,
        }
    }

    /// Whether all failures so far are ranks that were asked to end, by somebody else.
    fn only_asked_from_outside(&self) -> bool {
        self.exits.iter().all(|exit| {
            exit.ended.is_success()
                || matches!(exit.ended, Ended::Signal(libc::SIGTERM | libc::SIGHUP))
        })
    }

    fn terminate(&mut self, now: Instant) -> Action {
        self.phase = Phase::Stopping { until: now + self.limits.after_failure };
        Action::Terminate
    }

    fn kill(&mut self, now: Instant) -> Action {
        self.phase = Phase::Killing { until: now + self.limits.give_up };
        Action::Kill
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERM: Request = Request::Stop(libc::SIGTERM);

    fn job(ranks: usize) -> (Supervisor, Instant) {
        (Supervisor::new(0..ranks, Limits::with_grace(Duration::from_secs(30))), Instant::now())
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rank_that_ends_well_ends_nobody() {
        let (mut job, now) = job(2);
        assert_eq!(job.on_exit(1, Ended::Code(0), 1, now), Action::Nothing);
        assert_eq!(job.deadline(), None);
        assert!(!job.is_over());
        job.on_exit(0, Ended::Code(0), 2, now);
        assert!(job.is_over());
    }

    #[test]
    fn a_failure_is_followed_by_drain_stop_kill_and_the_end_within_ten_seconds() {
        let (mut job, now) = job(3);
        job.on_exit(1, Ended::Code(1), 1, now);
        assert_eq!(job.on_time(now + seconds(2)), Action::Nothing);
        assert_eq!(job.on_time(now + seconds(3)), Action::Terminate);
        job.on_exit(2, Ended::Signal(libc::SIGTERM), 2, now + seconds(4));
        assert_eq!(job.on_time(now + seconds(6)), Action::Kill);
        assert_eq!(job.on_time(now + seconds(8)), Action::GiveUp);
        assert!(job.is_over());
        let outcome = job.into_outcome();
        assert_eq!(outcome.stuck, [0]);
        assert_eq!(outcome.exits.iter().map(|exit| exit.asked).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_scheduler_gets_its_grace_and_may_repeat_itself() {
        let (mut job, now) = job(1);
        assert_eq!(job.on_request(TERM, now), Action::Terminate);
        assert_eq!(job.on_request(TERM, now + seconds(1)), Action::Nothing);
        assert_eq!(job.on_time(now + seconds(29)), Action::Nothing);
        assert_eq!(job.on_time(now + seconds(30)), Action::Kill);
        assert_eq!(job.into_outcome().request, Some(TERM));
    }

    #[test]
    fn the_second_interrupt_kills_at_once() {
        let (mut job, now) = job(1);
        assert_eq!(job.on_request(Request::Interrupt, now), Action::Terminate);
        assert_eq!(job.on_request(Request::Interrupt, now), Action::Kill);
        assert_eq!(job.on_request(Request::Interrupt, now), Action::Nothing);
    }

    #[test]
    fn an_interrupt_after_a_failure_does_not_hide_the_failure() {
        let (mut job, now) = job(2);
        job.on_exit(0, Ended::Code(1), 1, now);
        assert_eq!(job.on_request(Request::Interrupt, now), Action::Kill);
        assert_eq!(job.into_outcome().request, None);
    }

    #[test]
    fn a_signal_to_all_processes_is_one_request_whoever_hears_it_first() {
        let (mut job, now) = job(2);
        job.on_exit(0, Ended::Signal(libc::SIGTERM), 1, now);
        assert_eq!(job.on_request(TERM, now), Action::Terminate);
        assert_eq!(job.on_time(now + seconds(29)), Action::Nothing, "the other has its grace");
        assert_eq!(job.into_outcome().request, Some(TERM));
    }

    proptest! {
        #[test]
        fn every_job_ends_and_kills_at_most_once(
            events in prop::collection::vec((0_u8..5, 0_usize..3, 0_u64..40), 0..30),
        ) {
            let (mut job, mut now) = job(3);
            let mut kills = 0;
            let mut alive: Vec<usize> = vec![0, 1, 2];
            for (event, rank, wait) in events {
                now += seconds(wait);
                let action = match event {
                    0 => job.on_request(Request::Interrupt, now),
                    1 => job.on_request(TERM, now),
                    2 => job.on_time(now),
                    code => {
                        if !alive.contains(&rank) { continue }
                        alive.retain(|other| *other != rank);
                        job.on_exit(rank, Ended::Code(i32::from(code) - 3), 0, now)
                    }
                };
                kills += usize::from(action == Action::Kill);
            }
            prop_assert!(kills <= 1);
            // Left alone, a job that has begun to end comes to its end.
            while let Some(deadline) = job.deadline() {
                now = now.max(deadline);
                job.on_time(now);
            }
            let outcome = job.into_outcome();
            prop_assert_eq!(outcome.exits.len() + outcome.stuck.len(), 3);
        }
    }
}
