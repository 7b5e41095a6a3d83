//! Who failed first, and how to say it.

use std::fmt::Write as _;
use std::sync::PoisonError;

use ddp_env::exit;
use ddp_env::failure::{self, FailureKind, FailureRecord};

use super::plan::Plan;
use super::supervise::{Ended, Exit, Outcome};
use crate::output::SharedTail;
use crate::style::{self, Paint, paint};

/// Prints the report of a failed job, last, and returns the launcher's exit code.
pub(super) fn conclude(plan: &Plan, outcome: &Outcome, tails: &[SharedTail]) -> u8 {
    if !outcome.stuck.is_empty() {
        style::warning(&format!(
            "the kernel has not ended rank {}: look for a device that does not answer (dmesg)",
            numbers(&outcome.stuck)
        ));
    }
    let records = failure::read_all(&plan.report_dir).unwrap_or_else(|error| {
        style::warning(&error.to_string());
        Vec::new()
    });
    let lines_of = |rank: usize| {
        let tail = tails.get(rank.checked_sub(plan.hosts.rank(0))?)?;
        Some(tail.lock().unwrap_or_else(PoisonError::into_inner).lines())
    };
    let verdict = verdict(outcome, &records);
    let lines_of = |rank: usize| lines_of(rank).unwrap_or_default();
    if let Some(text) = verdict.text(plan, outcome, &lines_of, style::wanted()) {
        style::say(&text);
    }
    verdict.exit_code
}

/// What a job's end means.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    /// The failure that the others follow from.
    cause: Option<FailureRecord>,
    /// Whether the rank itself wrote it, or the launcher from how the process ended.
    by_rank: bool,
    exit_code: u8,
}

/// Decides: the records of the ranks, and for a rank without one (a signal leaves it no time) the
/// way its process ended. What ended only because the launcher asked is no failure.
fn verdict(outcome: &Outcome, records: &[FailureRecord]) -> Verdict {
    let failed = |exit: &&Exit| !exit.ended.is_success();
    let mut candidates = records.to_vec();
    for exit in outcome.exits.iter().filter(failed) {
        let has_record = records.iter().any(|record| record.rank == exit.rank);
        let stopped = exit.asked && was_stopped(exit.ended);
        if !(has_record || stopped) {
            candidates.push(synthesized(exit));
        }
    }
    let first_failure = outcome.exits.iter().find(failed);
    let cause = match (outcome.request, first_failure) {
        (_, None) => None,
        // Stopped on request: what a rank reports while it is being stopped may be of interest,
        // but only if it is an error of its own.
        (Some(_), _) => failure::root_cause(&candidates)
            .filter(|record| !matches!(record.kind, FailureKind::Peer | FailureKind::Killed)),
        (None, _) => failure::root_cause(&candidates),
    };
    let exit_code = match (outcome.request, first_failure) {
        _ if !outcome.stuck.is_empty() && first_failure.is_none() => 128 + 9,
        (_, None) => 0,
        (Some(request), _) => code_of(Ended::Signal(request.number())),
        (None, Some(first)) => {
            let of_cause = outcome
                .exits
                .iter()
                .find(|exit| cause.is_some_and(|cause| cause.rank == exit.rank) && failed(exit));
            code_of(of_cause.unwrap_or(first).ended)
        }
    };
    let by_rank = cause.is_some_and(|cause| records.contains(cause));
    Verdict { cause: cause.cloned(), by_rank, exit_code }
}

/// Whether a process ended by a signal that the launcher sends.
fn was_stopped(ended: Ended) -> bool {
    matches!(ended, Ended::Signal(libc::SIGTERM | libc::SIGKILL))
}

fn code_of(ended: Ended) -> u8 {
    match ended {
        Ended::Code(code) => u8::try_from(code).unwrap_or(1),
        Ended::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
    }
}

/// The record that a rank could not, or did not, write itself.
fn synthesized(exit: &Exit) -> FailureRecord {
    let kind = match exit.ended {
        Ended::Signal(_) => FailureKind::Killed,
        Ended::Code(code) => match u8::try_from(code).unwrap_or(1) {
            exit::SETUP_FAILED => FailureKind::Setup,
            exit::PEER_FAILED => FailureKind::Peer,
            exit::TIMED_OUT => FailureKind::Timeout,
            exit::MISMATCH => FailureKind::Mismatch,
            exit::PANIC => FailureKind::Panic,
            _ => FailureKind::Error,
        },
    };
    FailureRecord {
        rank: exit.rank,
        kind,
        operation: String::new(),
        message: String::new(),
        place: None,
        unix_ms: exit.unix_ms,
    }
}

impl Verdict {
    /// The report; `None` when there is nothing to say.
    fn text(
        &self,
        plan: &Plan,
        outcome: &Outcome,
        lines_of: &dyn Fn(usize) -> Vec<String>,
        colour: bool,
    ) -> Option<String> {
        let mut text = String::new();
        if let Some(request) = outcome.request {
            let name = signal_name(request.number());
            let _ = write!(text, "{}: {name}", paint(colour, Paint::Odd, "stopped"));
            if self.cause.is_none() {
                return Some(text);
            }
            text.push('\n');
        }
        let cause = self.cause.as_ref()?;
        let label = paint(colour, Paint::Bad, "error");
        let world_size = plan.hosts.world_size();
        let _ = write!(text, "{label}: rank {} of {world_size} failed", cause.rank);
        let others = outcome.exits.iter().filter(|exit| exit.rank != cause.rank);
        let others: Vec<_> = others.filter(|exit| !exit.ended.is_success()).collect();
        text.push_str(if others.is_empty() { ": " } else { " first: " });
        text.push_str(&how(outcome, cause));
        if cause.kind == FailureKind::Peer && plan.hosts.nnodes > 1 {
            text.push_str("\n  the first failure is in the report of another host");
        }
        let killed = outcome
            .exits
            .iter()
            .any(|exit| exit.rank == cause.rank && exit.ended == Ended::Signal(libc::SIGKILL));
        if killed && outcome.out_of_memory {
            text.push_str("\n  the kernel has killed a process of this control group for memory");
        }
        self.details(&mut text, cause, &lines_of(cause.rank));
        for exit in others {
            let _ = write!(text, "\n  rank {}: {}", exit.rank, described(exit));
        }
        Some(text)
    }

    fn details(&self, text: &mut String, cause: &FailureRecord, lines: &[String]) {
        for line in cause.message.trim_end().lines() {
            let _ = write!(text, "\n  | {line}");
        }
        // A rank that left by `?` knows that it failed, but its error is printed by whoever called
        // it.
        if cause.message.is_empty() && !lines.is_empty() {
            text.push_str("\n  the last lines of its stderr:");
            for line in lines {
                let _ = write!(text, "\n  | {line}");
            }
        }
        if self.by_rank {
            if !cause.operation.is_empty() {
                let _ = write!(text, "\n  during: {}", cause.operation);
            }
            if let Some(place) = &cause.place {
                let _ = write!(text, "\n  at: {place}");
            }
        }
    }
}

/// How the failed rank ended; a rank that wrote a record may have ended well all the same.
fn how(outcome: &Outcome, cause: &FailureRecord) -> String {
    match outcome.exits.iter().find(|exit| exit.rank == cause.rank) {
        Some(exit) if exit.asked && was_stopped(exit.ended) => {
            "it reported a failure and was stopped".to_owned()
        }
        Some(exit) => described_end(exit.ended),
        None => "it has not ended".to_owned(),
    }
}

fn described(exit: &Exit) -> String {
    if exit.asked && was_stopped(exit.ended) {
        return "stopped by the launcher".to_owned();
    }
    described_end(exit.ended)
}

fn described_end(ended: Ended) -> String {
    match ended {
        Ended::Code(code) => match exit::meaning(code) {
            Some(meaning) => format!("exit code {code} ({meaning})"),
            None => format!("exit code {code}"),
        },
        Ended::Signal(signal) => match signal_meaning(signal) {
            Some(meaning) => format!("killed by {} ({meaning})", signal_name(signal)),
            None => format!("killed by {}", signal_name(signal)),
        },
    }
}

fn signal_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.to_owned(),
        None => format!("signal {signal}"),
    }
}

/// What a signal often means for a training program.
fn signal_meaning(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGKILL => {
            "often the kernel's or the scheduler's answer to too much memory; see dmesg"
        }
        libc::SIGSEGV => "a wrong memory access, in native code most often",
        libc::SIGBUS => "often a full /dev/shm, or a mapped file that was cut short",
        libc::SIGABRT => "an abort: a C++ exception that nobody caught, or a failed check",
        libc::SIGILL => "an instruction that this CPU does not have",
        libc::SIGTERM => "asked to end from outside",
        _ => return None,
    })
}

/// `1, 2 and 5`.
fn numbers(ranks: &[usize]) -> String {
    let words: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
