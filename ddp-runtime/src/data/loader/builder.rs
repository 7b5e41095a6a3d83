//! The settings of a loader, checked once.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::crew::WorkerInit;
use super::error::LoaderError;
use super::seeds::WorkerInfo;
use super::source::{CollateWith, Numbered, Source, Streamed, With};
use super::{ByType, DataLoader, Settings};
use crate::data::dataset::BoxError;
use crate::data::{Dataset, IterableDataset, RandomSampler, Remainder, Sampler, SequentialSampler};
use crate::world;

/// How many threads read ahead for a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// This many on each rank. 0: the thread that iterates reads by itself, when it is asked.
    Count(usize),
    /// What the host has: the cores that this process may use, divided by the ranks of the host, less one for the thread
    /// that trains; 16 at most. That may be 0.
    Auto,
}

impl From<usize> for Workers {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

impl Workers {
    pub(super) fn count(self) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Auto => {
                let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
                auto(cores, world::topology().local_world_size)
            }
        }
    }
}

/// The workers of a rank, of so many cores for so many ranks.
fn auto(cores: usize, local_ranks: usize) -> usize {
    (cores / local_ranks.max(1)).saturating_sub(1).min(16)
}

/// Marks a builder whose samples have numbers.
#[derive(Clone, Copy, Debug)]
pub struct Map;

/// Marks a builder whose samples are a stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream;

/// Makes a [`DataLoader`]. The names and defaults of the settings are those of PyTorch's `DataLoader`, except where they
/// say otherwise.
#[must_use = "a builder does nothing until it builds"]
pub struct Builder<D, C = ByType, K = Map> {
    data: Arc<D>,
    collate: C,
    sampler: Option<Arc<dyn Sampler>>,
    shuffle: bool,
    settings: Settings,
    kind: PhantomData<K>,
}

impl<D, K> Builder<D, ByType, K> {
    pub(super) fn new(data: D) -> Self {
        Self {
            data: Arc::new(data),
            collate: ByType,
            sampler: None,
            shuffle: false,
            settings: Settings::default(),
            kind: PhantomData,
        }
    }
}

impl<D, C, K> Builder<D, C, K> {
    /// Samples in a batch, of each rank (with `batch = "global"`: of all ranks together, of which each makes its even part
    /// where the samples are a stream). 1 unless set.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.settings.batch_size = batch_size;
        self
    }

    /// Whether a last batch that is smaller than the others is left out. Off unless set.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.settings.drop_last = drop_last;
        self
    }

    /// What becomes of the samples that the ranks cannot share evenly. [`Remainder::Repeat`] unless set, as under PyTorch's
    /// `DistributedSampler`; for evaluation [`evaluation`](Self::evaluation).
    ///
    /// With `batch = "global"` the ranks share the last batch, too, and this is not asked, but for [`Remainder::Uneven`].
    /// Of a stream nobody knows the length: there, [`Remainder::Uneven`] lets each rank run to its own end, and the others
    /// end all ranks with the first one that has no more.
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.settings.remainder = remainder;
        self
    }

    /// [`Remainder::Uneven`]: every sample on one rank and only once, for figures that are [summed](crate::sum) over samples and
    /// ranks. No step and no collective may stand in the loop.
    pub fn evaluation(self) -> Self {
        self.remainder(Remainder::Uneven)
    }

    /// Every rank gets all batches: nothing is shared.
    pub fn whole(mut self) -> Self {
        self.settings.whole = true;
        self
    }

    /// Threads that read ahead on each rank. 0 unless set: the thread that iterates reads by itself.
    ///
    /// PyTorch's workers are processes, with a copy of the data set each; these are threads that share it. They compute on
    /// one core each.
    pub fn num_workers(mut self, workers: impl Into<Workers>) -> Self {
        self.settings.workers = workers.into();
        self
    }

    /// How many batches each worker may be ahead. 2 unless set.
    pub fn prefetch_factor(mut self, batches: usize) -> Self {
        self.settings.prefetch = batches;
        self
    }

    /// The longest wait for a worker's batch. Without one, unless set.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.timeout = Some(limit);
        self
    }

    /// The seed of the order, of the workers and of [`sample_seed`](crate::data::sample_seed); the same on all ranks. Unless
    /// set it is the option `seed` of the scope, which is 0 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// What each worker does when it begins.
    pub fn worker_init<E: Into<BoxError>>(
        mut self,
        init: impl Fn(WorkerInfo) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        let init: Arc<WorkerInit> = Arc::new(move |info| init(info).map_err(Into::into));
        self.settings.init = Some(init);
        self
    }

    /// Makes batches by a function, in place of [`Collate`](crate::data::Collate).
    pub fn collate<F>(self, collate: F) -> Builder<D, With<F>, K> {
        let Self { data, collate: _, sampler, shuffle, settings, kind } = self;
        Builder { data, collate: With(collate), sampler, shuffle, settings, kind }
    }
}

impl<D, C> Builder<D, C, Map> {
    /// Whether each epoch has a random order ([`RandomSampler`]). Off unless set.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The order of the samples. Unless set or [shuffled](Self::shuffle) it is that of their numbers.
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        self.sampler = Some(Arc::new(sampler));
        self
    }
}

impl<D: Dataset + 'static, C: CollateWith<D::Sample>> Builder<D, C, Map> {
    /// The loader.
    ///
    /// # Errors
    /// [`LoaderError::Setting`] names a setting that means nothing, or two that do not go together.
    pub fn build(self) -> Result<DataLoader<C::Batch>, LoaderError> {
        self.settings.check()?;
        let len = self.data.len();
        let sampler: Arc<dyn Sampler> = match (self.sampler, self.shuffle) {
            (Some(_), true) => {
                return Err(setting(
                    "`sampler` excludes `shuffle`, as it has an order; take one away",
                ));
            }
            (Some(sampler), false) => sampler,
            (None, true) => Arc::new(RandomSampler::new(len)),
            (None, false) => Arc::new(SequentialSampler::new(len)),
        };
        let source: Arc<dyn Source<C::Batch>> =
            Arc::new(Numbered { data: self.data, collate: Arc::new(self.collate) });
        Ok(DataLoader::new(source, Some(sampler), self.settings))
    }
}

impl<D: IterableDataset + 'static, C: CollateWith<D::Sample>> Builder<D, C, Stream> {
    /// The loader.
    ///
    /// # Errors
    /// As for numbered samples.
    pub fn build(self) -> Result<DataLoader<C::Batch>, LoaderError> {
        self.settings.check()?;
        let source: Arc<dyn Source<C::Batch>> =
            Arc::new(Streamed { data: self.data, collate: Arc::new(self.collate) });
        Ok(DataLoader::new(source, None, self.settings))
    }
}

impl Settings {
    fn check(&self) -> Result<(), LoaderError> {
        if self.batch_size == 0 {
            return Err(setting("`batch_size` is 0; a batch has 1 sample or more"));
        }
        if i64::try_from(self.batch_size).is_err() {
            return Err(setting(
                "`batch_size` is more than libtorch can count; take a smaller one",
            ));
        }
        if self.prefetch == 0 {
            return Err(setting("`prefetch_factor` is 0; a worker makes 1 batch ahead or more"));
        }
        if self.timeout.is_some_and(|limit| limit.is_zero()) {
            return Err(setting("`timeout` is 0; leave it out to wait as long as it takes"));
        }
        Ok(())
    }
}

fn setting(setting: &'static str) -> LoaderError {
    LoaderError::Setting { setting }
}

impl<D, C, K> fmt::Debug for Builder<D, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("sampler", &self.sampler)
            .field("shuffle", &self.shuffle)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::auto;
    use crate::data::{DataLoader, SequentialSampler};

    #[test]
    fn cores_are_divided_over_the_ranks_of_the_host() {
        let cases = [(2, 1), (2, 2), (1, 4), (16, 2), (96, 1), (64, 8)];
        let workers = cases.map(|(cores, ranks)| auto(cores, ranks));
        assert_eq!(workers, [1, 0, 0, 7, 16, 7]);
        assert_eq!(auto(8, 0), 7);
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        let builder = || DataLoader::builder(vec![1.0_f32; 8]);
        let text = |error: Result<_, super::LoaderError>| error.map(drop).unwrap_err().to_string();
        assert!(text(builder().batch_size(0).build()).contains("`batch_size` is 0"));
        assert!(text(builder().batch_size(usize::MAX).build()).contains("`batch_size` is more"));
        assert!(text(builder().prefetch_factor(0).build()).contains("`prefetch_factor` is 0"));
        assert!(text(builder().timeout(Duration::ZERO).build()).contains("`timeout` is 0"));
        let both = builder().shuffle(true).sampler(SequentialSampler::new(8)).build();
        assert!(text(both).contains("`sampler` excludes `shuffle`"));
    }
}
