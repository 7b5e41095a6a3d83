//! Random numbers for loading: who a worker is, and a seed for each sample.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::order::mix;

/// The worker that a thread is: PyTorch's `get_worker_info()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its number among this rank's workers, from 0.
    pub id: usize,
    /// How many workers this rank has.
    pub num_workers: usize,
    /// A seed of its own: `base_seed + id` as in PyTorch. The base seed is another for each seed of the loader, pass and rank.
    ///
    /// What a worker draws with it depends on the number of workers; [`sample_seed`] does not.
    pub seed: u64,
}

thread_local! {
    static WORKER: Cell<Option<WorkerInfo>> = const { Cell::new(None) };
    static SEED: Cell<u64> = const { Cell::new(0) };
    static POST: OnceCell<Arc<Post>> = const { OnceCell::new() };
}

/// Where a worker shows which sample it is loading, for who waits for it.
#[derive(Debug)]
pub(super) struct Post(AtomicUsize);

impl Post {
    const NONE: usize = usize::MAX;

    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(Self::NONE))
    }

    /// The sample that the worker is loading.
    pub(super) fn sample(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&index| index != Self::NONE)
    }
}

/// The worker that this thread is; `None` on every other thread, and so where the loader has no workers.
#[must_use]
pub fn worker_info() -> Option<WorkerInfo> {
    WORKER.get()
}

/// A seed for what is drawn at random while a sample is loaded: augmentations, crops, noise.
///
/// It is another for each sample of each epoch, and follows from the loader's seed, the epoch and the place of the sample
/// in the epoch's order alone: the same sample is drawn the same way with any number of ranks and workers, and when an
/// epoch is resumed. For example `StdRng::seed_from_u64(sample_seed())` at the head of [`get`](crate::data::Dataset::get).
///
/// libtorch's own generator is none for this: it belongs to the whole process, so workers that draw from it draw in a chance
/// order, and take numbers from the model's dropout.
///
/// Where no sample is being loaded it is always the same number.
#[must_use]
pub fn sample_seed() -> u64 {
    SEED.get()
}

/// What the seeds of one pass follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassSeed(u64);

impl PassSeed {
    pub(super) fn new(seed: u64, pass: u64) -> Self {
        Self(mix(mix(seed) ^ pass))
    }

    /// The workers' base seed on a rank.
    pub(super) fn base(self, rank: usize) -> u64 {
        mix(self.0 ^ mix(!(rank as u64)))
    }

    /// From now on this thread loads the sample at a place of the order, which has this index.
    pub(super) fn begin_sample(self, place: u64, index: usize) {
        SEED.set(mix(self.0 ^ mix(place)));
        show(index);
    }
}

/// This thread loads no sample any more.
pub(super) fn end_sample() {
    SEED.set(0);
    show(Post::NONE);
}

fn show(index: usize) {
    POST.with(|post| {
        if let Some(post) = post.get() {
            post.0.store(index, Ordering::Relaxed);
        }
    });
}

/// From now on this thread is a worker, and shows at `post` what it does.
pub(super) fn become_worker(info: WorkerInfo, post: Arc<Post>) {
    WORKER.set(Some(info));
    // A thread is one worker in its life.
    let _ = POST.with(|place| place.set(post));
}

#[cfg(test)]
mod tests {
    use super::PassSeed;

    #[test]
    fn p33_ranks_passes_and_seeds_have_other_bases() {
        let bases = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1)]
            .map(|(seed, pass, rank)| PassSeed::new(seed, pass).base(rank));
        let different: std::collections::HashSet<_> = bases.into_iter().collect();
        assert_eq!(different.len(), bases.len());
    }
}
