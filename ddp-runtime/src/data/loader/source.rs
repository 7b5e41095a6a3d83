//! What a reader does: take the samples of its batches out of a data set, and make batches of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::LoaderError;
use super::seeds::{self, PassSeed};
use crate::data::dataset::{BoxError, Samples};
use crate::data::deal::Pass;
use crate::data::{Collate, Dataset, Indices, IterableDataset, Share};

/// The batches of one pass, as this rank has them.
pub(super) struct PassPlan {
    pub(super) pass: Pass,
    pub(super) indices: Indices,
    pub(super) seed: PassSeed,
}

/// Which batches a reader makes.
#[derive(Clone)]
pub(super) enum Task {
    /// Batches `first`, `first + step`, .. of a plan.
    Numbered { plan: Arc<PassPlan>, first: usize, step: usize },
    /// A part of a stream.
    Stream { share: Share, epoch: u64, seed: PassSeed, batch: usize, drop_last: bool },
}

/// One after the other, the batches of one reader. Lives on one thread.
pub(super) trait Reader<B> {
    /// The next batch; `None` after the last one, or once `stop` is set.
    fn next(&mut self, stop: &AtomicBool) -> Option<Result<B, LoaderError>>;
}

/// A data set with its way to make batches, whatever their types.
pub(super) trait Source<B>: Send + Sync {
    /// Begins to read.
    fn reader(&self, task: Task) -> Box<dyn Reader<B>>;
    /// Samples in the data set; `None` where only its end will tell.
    fn len(&self) -> Option<usize>;
}

/// How batches are made of samples: by their type ([`ByType`]), or by a function of the user's ([`With`]).
pub trait CollateWith<S>: Send + Sync + 'static {
    /// The batch.
    type Batch: Send + 'static;

    /// A batch of samples, whose indices are told for the error.
    #[doc(hidden)]
    fn collate(&self, samples: Vec<S>, indices: &[usize]) -> Result<Self::Batch, LoaderError>;

    /// A batch at once, where data set and collation allow it.
    #[doc(hidden)]
    fn at_once<D: Dataset<Sample = S>>(
        &self,
        data: &D,
        indices: &[usize],
    ) -> Option<Result<Self::Batch, LoaderError>> {
        let _ = (data, indices);
        None
    }
}

/// Batches are made as [`Collate`] says of the type of the samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByType;

impl<S: Collate<Batch: Send + 'static>> CollateWith<S> for ByType {
    type Batch = S::Batch;

    fn collate(&self, samples: Vec<S>, indices: &[usize]) -> Result<S::Batch, LoaderError> {
        S::collate(samples).map_err(|error| LoaderError::Collate {
            indices: indices.to_vec(),
            source: error.into(),
        })
    }

    fn at_once<D: Dataset<Sample = S>>(
        &self,
        data: &D,
        indices: &[usize],
    ) -> Option<Result<S::Batch, LoaderError>> {
        let batch = data.get_batch(indices)?;
        Some(batch.map_err(|error| LoaderError::Batch {
            indices: indices.to_vec(),
            source: error.into(),
        }))
    }
}

/// Batches are made by a function.
pub struct With<F>(pub(super) F);

impl<S, B, E, F> CollateWith<S> for With<F>
where
    B: Send + 'static,
    E: Into<BoxError>,
    F: Fn(Vec<S>) -> Result<B, E> + Send + Sync + 'static,
{
    type Batch = B;

    fn collate(&self, samples: Vec<S>, indices: &[usize]) -> Result<B, LoaderError> {
        (self.0)(samples).map_err(|error| LoaderError::Collate {
            indices: indices.to_vec(),
            source: error.into(),
        })
    }
}

/// A data set of numbered samples.
pub(super) struct Numbered<D, C> {
    pub(super) data: Arc<D>,
    pub(super) collate: Arc<C>,
}

impl<D, C> Clone for Numbered<D, C> {
    fn clone(&self) -> Self {
        Self { data: Arc::clone(&self.data), collate: Arc::clone(&self.collate) }
    }
}

impl<D: Dataset + 'static, C: CollateWith<D::Sample>> Source<C::Batch> for Numbered<D, C> {
    fn reader(&self, task: Task) -> Box<dyn Reader<C::Batch>> {
        match task {
            Task::Numbered { plan, first, step } => {
                Box::new(NumberedReader { source: self.clone(), plan, next: first, step })
            }
            // Never asked for: a loader makes the tasks that suit its source.
            Task::Stream { .. } => Box::new(Nothing),
        }
    }

    fn len(&self) -> Option<usize> {
        Some(self.data.len())
    }
}

/// A reader without batches.
struct Nothing;

impl<B> Reader<B> for Nothing {
    fn next(&mut self, _stop: &AtomicBool) -> Option<Result<B, LoaderError>> {
        None
    }
}

struct NumberedReader<D, C> {
    source: Numbered<D, C>,
    plan: Arc<PassPlan>,
    next: usize,
    step: usize,
}

impl<D: Dataset, C: CollateWith<D::Sample>> NumberedReader<D, C> {
    /// The places and indices of the samples of a batch.
    fn samples(&self, number: usize) -> Option<Result<Vec<(usize, usize)>, LoaderError>> {
        let stretch = self.plan.pass.batch(number)?;
        let len = self.source.data.len();
        let sample = |k| {
            let place = stretch.place(k)?;
            let index = self.plan.indices.at(place)?;
            Some(if index < len {
                Ok((place, index))
            } else {
                Err(LoaderError::NoSuchSample { index, len })
            })
        };
        Some((0..stretch.count).filter_map(sample).collect())
    }

    /// The batch; `None` if it is not wanted any more.
    fn load(
        &self,
        samples: &[(usize, usize)],
        stop: &AtomicBool,
    ) -> Option<Result<C::Batch, LoaderError>> {
        let indices: Vec<usize> = samples.iter().map(|(_, index)| *index).collect();
        if let Some(batch) = self.source.collate.at_once(&*self.source.data, &indices) {
            return Some(batch);
        }
        let mut loaded = Vec::with_capacity(samples.len());
        for &(place, index) in samples {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.plan.seed.begin_sample(place as u64, index);
            match self.source.data.get(index) {
                Ok(sample) => loaded.push(sample),
                Err(error) => {
                    return Some(Err(LoaderError::Sample { index, source: error.into() }));
                }
            }
        }
        seeds::end_sample();
        Some(self.source.collate.collate(loaded, &indices))
    }
}

impl<D: Dataset, C: CollateWith<D::Sample>> Reader<C::Batch> for NumberedReader<D, C> {
    fn next(&mut self, stop: &AtomicBool) -> Option<Result<C::Batch, LoaderError>> {
        let samples = match self.samples(self.next)? {
            Ok(samples) => samples,
            Err(error) => return Some(Err(error)),
        };
        self.next += self.step;
        let batch = self.load(&samples, stop);
        seeds::end_sample();
        batch
    }
}

/// A data set that is a stream.
pub(super) struct Streamed<D, C> {
    pub(super) data: Arc<D>,
    pub(super) collate: Arc<C>,
}

impl<D: IterableDataset + 'static, C: CollateWith<D::Sample>> Source<C::Batch> for Streamed<D, C> {
    fn reader(&self, task: Task) -> Box<dyn Reader<C::Batch>> {
        match task {
            Task::Stream { share, epoch, seed, batch, drop_last } => {
                Box::new(StreamReader::<D, C> {
                    samples: self.data.read(share, epoch),
                    collate: Arc::clone(&self.collate),
                    share,
                    seed,
                    batch,
                    drop_last,
                    read: 0,
                    over: false,
                })
            }
            // As above.
            Task::Numbered { .. } => Box::new(Nothing),
        }
    }

    fn len(&self) -> Option<usize> {
        None
    }
}

struct StreamReader<D: IterableDataset, C> {
    samples: Samples<D::Sample, D::Error>,
    collate: Arc<C>,
    share: Share,
    seed: PassSeed,
    batch: usize,
    drop_last: bool,
    /// Samples read.
    read: usize,
    over: bool,
}

impl<D: IterableDataset, C> StreamReader<D, C> {
    /// The next sample; `None` after the last.
    fn sample(&mut self) -> Option<Result<D::Sample, LoaderError>> {
        // Samples of all readers, in turn, if all have as many.
        let place = self.read * self.share.world_size() + self.share.rank();
        self.seed.begin_sample(place as u64, self.read);
        let sample = self.samples.next();
        seeds::end_sample();
        let after = self.read;
        self.read += 1;
        let reader = self.share.rank();
        Some(sample?.map_err(|error| LoaderError::Stream { reader, after, source: error.into() }))
    }
}

impl<D: IterableDataset, C: CollateWith<D::Sample>> Reader<C::Batch> for StreamReader<D, C> {
    fn next(&mut self, stop: &AtomicBool) -> Option<Result<C::Batch, LoaderError>> {
        let first = self.read;
        let mut samples = Vec::with_capacity(self.batch);
        while samples.len() < self.batch && !self.over {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            match self.sample() {
                Some(Ok(sample)) => samples.push(sample),
                Some(Err(error)) => return Some(Err(error)),
                None => self.over = true,
            }
        }
        if samples.is_empty() || (self.drop_last && samples.len() < self.batch) {
            return None;
        }
        let indices: Vec<usize> = (first..first + samples.len()).collect();
        Some(self.collate.collate(samples, &indices))
    }
}

/// Batches that something more is done with, where they are made.
pub(super) struct Mapped<A, F> {
    pub(super) source: Arc<dyn Source<A>>,
    pub(super) change: Arc<F>,
}

impl<A, B, F> Source<B> for Mapped<A, F>
where
    A: 'static,
    B: 'static,
    F: Fn(A) -> Result<B, LoaderError> + Send + Sync + 'static,
{
    fn reader(&self, task: Task) -> Box<dyn Reader<B>> {
        let change = Arc::clone(&self.change);
        Box::new(MappedReader { reader: self.source.reader(task), change })
    }

    fn len(&self) -> Option<usize> {
        self.source.len()
    }
}

struct MappedReader<A, F> {
    reader: Box<dyn Reader<A>>,
    change: Arc<F>,
}

impl<A, B, F: Fn(A) -> Result<B, LoaderError>> Reader<B> for MappedReader<A, F> {
    fn next(&mut self, stop: &AtomicBool) -> Option<Result<B, LoaderError>> {
        Some(self.reader.next(stop)?.and_then(|batch| (self.change)(batch)))
    }
}
