//! Where a loader stands in an epoch, to be written into a checkpoint and gone on from, with as many ranks as there are then.

use serde::{Deserialize, Serialize};

use super::epoch;

/// Where a [`DataLoader`](super::DataLoader) stands: the epoch, and how much of its order all ranks together have taken.
///
/// It holds no rank and no number of ranks, and is the same on all of them (of rank 0 it is enough to save it). A loader
/// that [resumes](super::DataLoader::resume) from it goes on with the rest of the epoch: every sample that had not been
/// given out before comes now, and none that had. The number of ranks, the batch size and the number of workers may be
/// others than before; what must be the same is the order, that is the sampler and the seed, and it is an error if it is
/// not. Batches that were read ahead and not given out count as not taken.
///
/// The exact rule is [a note](#the-rule) on places:
///
/// # The rule
///
/// After `k` batches of `b` samples on each of `W` ranks, the first `k W b` places of the epoch's order are taken (`k b` with
/// `batch = "global"`, where a batch is that of all ranks). The pass that resumes is a pass over the places from there on.
/// What the ranks cannot share evenly at its end follows the [`Remainder`](super::Remainder) of the loader that resumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderState {
    /// The pass; see [`epoch::EpochClock`].
    pub(super) pass: u64,
    pub(super) seed: u64,
    /// Places of the order.
    pub(super) places: u64,
    /// Places that are taken.
    pub(super) taken: u64,
    /// The last batch was given out: nothing of the epoch is left.
    pub(super) finished: bool,
    /// What tells the order from others.
    pub(super) order: u64,
}

impl LoaderState {
    /// The epoch it stands in, counted from 0: where the epoch loop of a resumed program begins, unless it
    /// [is finished](Self::is_finished).
    #[must_use]
    pub fn epoch(&self) -> u64 {
        epoch::of_pass(self.pass)
    }

    /// Whether all of the epoch was given out, so that a loader that resumes begins the next one.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The epoch that the loop of a resumed program begins with: this one, or the next where it is finished.
    #[must_use]
    pub fn next_epoch(&self) -> u64 {
        self.epoch() + u64::from(self.finished)
    }

    /// How many samples all ranks together have taken of the epoch.
    #[must_use]
    pub fn samples_taken(&self) -> u64 {
        self.taken
    }
}

/// Why a loader cannot go on from a state, or has none to give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The data set has another size than when the state was saved.
    #[error(
        "the state was saved with {saved} samples in an epoch, and now there are {now}; resume with the same data"
    )]
    Samples {
        /// Samples then.
        saved: u64,
        /// Samples now.
        now: u64,
    },
    /// The order has another seed.
    #[error(
        "the state was saved with seed {saved}, and now the seed is {now}; resume with the same seed"
    )]
    Seed {
        /// The seed then.
        saved: u64,
        /// The seed now.
        now: u64,
    },
    /// The order is another one.
    #[error(
        "the order of the samples is not the one that the state was saved in; resume with the same sampler"
    )]
    Order,
    /// The loop counts another epoch.
    #[error(
        "the loop is at epoch {told}, and the state was saved in epoch {saved}; begin the loop with the state's \
         `next_epoch()`"
    )]
    Epoch {
        /// The epoch of the state.
        saved: u64,
        /// The epoch that the loop is at.
        told: u64,
    },
    /// There is nothing to save yet.
    #[error(
        "no pass has begun, so there is nothing to resume; save the state after the first batch"
    )]
    NotBegun,
    /// The data comes in an order that only its source knows.
    #[error(
        "an iterable data set cannot be resumed by its loader, as its order is its own; let the data set begin where it \
         is to go on"
    )]
    Iterable,
}
