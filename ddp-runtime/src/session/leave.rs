//! The end of a scope, good or bad, and whose turn it is on a host.
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use ddp_env::failure::{FailureKind, FailureRecord};

use super::Session;
use crate::control::Operation;
use crate::error::{Error, Result};
use crate::output;
use crate::report;
use crate::trace;
use crate::watch::Done;

impl Session {
    /// Says goodbye, once all ranks do.
    pub(crate) fn leave(&self) -> Result<()> {
        self.run(|inner| {
            if self.topology.is_local_main() {
                // Whoever comes to a `main_first` now would wait for this rank in vain.
                inner.group.watch().mark_done(&self.first_has_left())?;
            }
            let traced = i64::from(trace::is_on());
            let headers = inner.announce(Operation::Leave, 0, traced)?;
            let missed = inner.group.course().missed();
            if !missed.is_empty() && self.topology.is_main() {
                let steps: Vec<String> = headers
                    .iter()
                    .zip(missed)
                    .map(|(header, missed)| (header.backwards - missed).to_string())
                    .collect();
                output::notice(format_args!(
                    "the ranks took {} steps; all have the weights of the rank with the most now, and each its own \
                     optimizer's state",
                    steps.join(", ")
                ));
            }
            let traced: Vec<bool> = headers.iter().map(|header| header.extra == 1).collect();
            let (control, watch) = inner.group.control();
            trace::finish(control, watch, &traced)
        })
    }

    fn first_has_left(&self) -> String {
        format!("the training of the first rank of host {}", self.topology.node_rank)
    }

    /// On the first rank of a host: says that its turn is over. On the others: waits for that, as long as no rank fails.
    pub(crate) fn pass_first(&self) -> Result<()> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let what = format!("main_first, turn {turn} of host {}", self.topology.node_rank);
        self.run(|inner| {
            if self.topology.is_local_main() {
                inner.group.watch().mark_done(&what)
            } else {
                match inner.group.watch().wait_until_done(&what, &self.first_has_left())? {
                    Done::Asked => Ok(()),
                    Done::Never => Err(Error::unsupported(
                        "`main_first` was called where the first rank of this host has returned already",
                        "call it before the training loop",
                    )),
                }
            }
        })
    }

    /// Keeps the first error, tells the other ranks and the launcher.
    pub(crate) fn fail(&self, error: &Error) {
        {
            let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_some() {
                return;
            }
            *first = Some(error.clone());
        }
        if !error.is_peer() {
            self.tell_others(&error.to_string());
        }
        report::write(&self.record(report::kind(error), error.to_string(), None));
    }

    /// Ends what is under way on this rank's GPU.
    pub(crate) fn abort(&self) {
        self.lock().group.abort();
    }

    /// Tells the other ranks that this one ends with `message`.
    pub(crate) fn tell_others(&self, message: &str) {
        self.lock().group.report(message);
    }

    /// What the launcher is told about a failure of this rank.
    pub(crate) fn record(
        &self,
        kind: FailureKind,
        message: String,
        place: Option<String>,
    ) -> FailureRecord {
        report::record(self.topology.rank, kind, self.name.clone(), message, place)
    }
}
