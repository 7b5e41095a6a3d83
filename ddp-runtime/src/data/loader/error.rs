//! What can go wrong while batches are loaded, with the sample that it went wrong at.

use std::time::Duration;

use crate::data::dataset::BoxError;
use crate::data::{DataError, SamplerError, StateError};

/// Why a loader gives no more batches. The pass is over with it: no batch follows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The data set could not give a sample.
    #[error("sample {index}: {source}")]
    Sample {
        /// The sample.
        index: usize,
        /// The data set's error.
        source: BoxError,
    },
    /// The data set could not give a batch at once.
    #[error("the batch of samples {}: {source}", some(indices))]
    Batch {
        /// The samples.
        indices: Vec<usize>,
        /// The data set's error.
        source: BoxError,
    },
    /// An iterable data set could not give its next sample.
    #[error("the sample after {after} of reader {reader}: {source}")]
    Stream {
        /// The reader, over all ranks and workers.
        reader: usize,
        /// Samples that it had read before.
        after: usize,
        /// The data set's error.
        source: BoxError,
    },
    /// The samples do not make a batch.
    #[error("making a batch of samples {}: {source}", some(indices))]
    Collate {
        /// The samples; of an iterable data set the places in its reader's part.
        indices: Vec<usize>,
        /// The error of [`Collate`](crate::data::Collate) or of the loader's own function.
        source: BoxError,
    },
    /// The function that [`DataLoader::map`](super::DataLoader::map) was given failed.
    #[error("changing a batch: {source}")]
    Map {
        /// The function's error.
        source: BoxError,
    },
    /// A worker panicked.
    #[error("worker {worker} of a data loader panicked{}: {message}", at(*index))]
    Panicked {
        /// The worker.
        worker: usize,
        /// The sample that it was loading, as far as it had one.
        index: Option<usize>,
        /// What the panic says.
        message: String,
    },
    /// A worker did not answer in time.
    #[error(
        "worker {worker} of a data loader has given no batch for {} s{}; its data set hangs, or takes longer than the \
         loader's `timeout`",
        limit.as_secs_f64(),
        at(*index)
    )]
    Timeout {
        /// The worker.
        worker: usize,
        /// The sample that it is loading, as far as it has one.
        index: Option<usize>,
        /// The limit.
        limit: Duration,
    },
    /// A sampler asks for a sample that does not exist.
    #[error(
        "the sampler asks for sample {index} of {len}; make the sampler with the size of the data set"
    )]
    NoSuchSample {
        /// The sample.
        index: usize,
        /// Samples in the data set.
        len: usize,
    },
    /// A setting means nothing, or does not go with another.
    #[error("a data loader's {setting}")]
    Setting {
        /// The setting, what is wrong with it, and what to write.
        setting: &'static str,
    },
    /// The hook that begins a worker failed.
    #[error("beginning worker {worker} of a data loader: {source}")]
    WorkerInit {
        /// The worker.
        worker: usize,
        /// The hook's error.
        source: BoxError,
    },
    /// A worker's thread could not be started.
    #[error("starting worker {worker} of a data loader: {source}; use fewer workers")]
    Spawn {
        /// The worker.
        worker: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// A worker's thread is gone without a word.
    #[error("worker {worker} of a data loader is gone without a word")]
    Lost {
        /// The worker.
        worker: usize,
    },
    /// A batch could not be moved to pinned memory.
    #[error("moving a batch to pinned memory: {0}")]
    Pin(tch::TchError),
    /// The main rank could not read the next batch.
    #[error("reading the next batch: {0}")]
    Read(#[source] BoxError),
    /// The main rank, which reads for this one, could not read the next batch.
    #[error("the main rank could not read the next batch: {message}")]
    MainRank {
        /// What it said.
        message: String,
    },
    /// The pass has ended in an error, which a loop that deals its batches out gave to another rank.
    #[error("{message}")]
    Ended {
        /// What the error said.
        message: String,
    },
    /// Batches that were shared among the ranks are shared again.
    #[error(
        "a data loader deals its batches out by itself, and this loop deals them out a second time; take #[ddp(shard)], or \
         the call of `shard`, away"
    )]
    SharedTwice,
    /// The samples cannot be shared.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The pass cannot go on from the state that it was given.
    #[error("resuming a data loader: {0}")]
    State(#[from] StateError),
    /// The other ranks could not be asked.
    #[error(transparent)]
    Ranks(#[from] crate::Error),
}

impl From<SamplerError> for LoaderError {
    fn from(error: SamplerError) -> Self {
        Self::Data(error.into())
    }
}

fn at(index: Option<usize>) -> String {
    index.map_or_else(String::new, |index| format!(" at sample {index}"))
}

/// The first few of many.
fn some(indices: &[usize]) -> String {
    let shown: Vec<String> = indices.iter().take(8).map(usize::to_string).collect();
    let more = indices.len().saturating_sub(shown.len());
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::LoaderError;

    #[test]
    fn errors_name_the_sample_and_can_cross_threads() {
        fn check<T: Send + Sync + 'static>(_: &T) {}
        let error = LoaderError::Sample { index: 7, source: "no such file".into() };
        check(&error);
        assert_eq!(error.to_string(), "sample 7: no such file");
        let error = LoaderError::Batch { indices: (0..10).collect(), source: "x".into() };
        assert_eq!(error.to_string(), "the batch of samples 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: x");
        let error = LoaderError::Panicked { worker: 1, index: Some(3), message: "oh".into() };
        assert_eq!(error.to_string(), "worker 1 of a data loader panicked at sample 3: oh");
    }
}
