//! The loader: batches of a data set, read ahead by threads, each rank's share of them in an order that nobody disturbs.

mod batches;
mod builder;
mod crew;
mod error;
mod pin;
mod seeds;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::batches::{End, Numbered, Progress, Supply};
use self::crew::{Crew, Orders, WorkerInit};
use self::seeds::PassSeed;
use self::source::{Mapped, PassPlan, Source, Task};
use super::deal::{Pass, Rule};
use super::epoch::{self, Passes};
use super::weight::Holder;
use super::{LoaderState, Order, Remainder, Sampler, Share, StateError};
use crate::advice;
use crate::options::Batch;
use crate::scope::current_share;
use crate::session;

pub use batches::Batches;
pub use builder::{Builder, Map, Stream, Workers};
pub use error::LoaderError;
pub use pin::PinMemory;
pub use seeds::{WorkerInfo, sample_seed, worker_info};
pub use source::{ByType, CollateWith, With};

/// Batches of a data set: PyTorch's `DataLoader`, which shares its batches among the ranks by itself.
///
/// ```
/// use ddp_runtime::data::{DataLoader, TensorDataset};
/// use tch::{Tensor, kind};
///
/// let images = Tensor::zeros([1000, 784], kind::FLOAT_CPU);
/// let labels = Tensor::zeros([1000], kind::INT64_CPU);
/// let loader = DataLoader::builder(TensorDataset::new((images, labels))?)
///     .batch_size(64)
///     .shuffle(true)
///     .num_workers(2)
///     .build()?;
/// for epoch in 0..3 {
///     for batch in loader.iter() {
///         let (xs, ys) = batch?;
///         assert_eq!(xs.size()[0], ys.size()[0]);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Ranks
///
/// The loader looks for the scope it is in whenever a pass begins, so one and the same loader can be made before a scope,
/// and used inside it, outside it, or without any. On `W` ranks, rank `r` takes places `r`, `r + W`, .. of the order, which is
/// the same on all ranks, in batches of [`batch_size`](Builder::batch_size): what PyTorch does with a `DistributedSampler`, and
/// with the same indices. With `batch = "global"` the ranks share each batch instead, and unequal parts of it count by their
/// samples, as in [`ShardedIter2`](super::ShardedIter2). `#[distributed]` knows the loader and asks for no mark on its loops.
///
/// # Order
///
/// A pass is an epoch. Its number is what [`set_epoch`](Self::set_epoch) says, or else what `#[distributed]` says (the variable of
/// the epoch loop), or else the loader's own count: nobody has to say anything for each epoch to have another order. Batches
/// come in order, whatever the workers do.
///
/// # Errors
///
/// An item is a `Result`. An error of the data set names the sample, a worker's panic becomes an error, and both end the pass.
/// (Without workers a panic is a panic of the thread that iterates.)
pub struct DataLoader<B = ()> {
    source: Arc<dyn Source<B>>,
    /// `None` where the samples are a stream.
    sampler: Option<Arc<dyn Sampler>>,
    settings: Settings,
    course: Mutex<Course>,
}

/// What is set once.
#[derive(Clone)]
struct Settings {
    batch_size: usize,
    drop_last: bool,
    remainder: Remainder,
    whole: bool,
    workers: Workers,
    prefetch: usize,
    timeout: Option<Duration>,
    seed: Option<u64>,
    init: Option<Arc<WorkerInit>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_size: 1,
            drop_last: false,
            remainder: Remainder::Repeat,
            whole: false,
            workers: Workers::Count(0),
            prefetch: 2,
            timeout: None,
            seed: None,
            init: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("batch_size", &self.batch_size)
            .field("drop_last", &self.drop_last)
            .field("remainder", &self.remainder)
            .field("whole", &self.whole)
            .field("workers", &self.workers)
            .field("prefetch", &self.prefetch)
            .field("timeout", &self.timeout)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// What changes from pass to pass.
#[derive(Default)]
struct Course {
    passes: Passes,
    /// The epoch that this loader was told.
    told: Option<u64>,
    /// The state that the next pass goes on from.
    pending: Option<LoaderState>,
    /// How far the last pass has come.
    latest: Option<Arc<Progress>>,
}

/// What a pass begins with.
struct Begin {
    share: Share,
    order: Order,
    /// Places taken before.
    first: usize,
    resumed: Option<LoaderState>,
}

impl DataLoader {
    /// The settings of a loader of numbered samples.
    pub fn builder<D: super::Dataset>(data: D) -> Builder<D> {
        Builder::new(data)
    }

    /// The settings of a loader of a stream of samples.
    pub fn stream<D: super::IterableDataset>(data: D) -> Builder<D, ByType, Stream> {
        Builder::new(data)
    }
}

impl<B: Send + 'static> DataLoader<B> {
    fn new(
        source: Arc<dyn Source<B>>,
        sampler: Option<Arc<dyn Sampler>>,
        settings: Settings,
    ) -> Self {
        Self { source, sampler, settings, course: Mutex::default() }
    }

    /// Does something with each batch where it is made, which is on the workers if there are any: moving, normalising,
    /// augmenting whole batches.
    ///
    /// # Errors
    /// What `change` returns becomes [`LoaderError::Map`].
    pub fn map<C: Send + 'static, E: Into<super::BoxError>>(
        self,
        change: impl Fn(B) -> Result<C, E> + Send + Sync + 'static,
    ) -> DataLoader<C> {
        self.mapped(move |batch| {
            change(batch).map_err(|error| LoaderError::Map { source: error.into() })
        })
    }

    fn mapped<C: Send + 'static>(
        self,
        change: impl Fn(B) -> Result<C, LoaderError> + Send + Sync + 'static,
    ) -> DataLoader<C> {
        let Self { source, sampler, settings, course } = self;
        let source: Arc<dyn Source<C>> = Arc::new(Mapped { source, change: Arc::new(change) });
        DataLoader { source, sampler, settings, course }
    }

    /// Moves each batch to pinned memory where it is made (`pin_memory=True`), from where it goes to the GPU while the program
    /// runs on. Without a GPU it has no effect, and a line says so, as in PyTorch.
    #[must_use]
    pub fn pin_memory(self) -> Self
    where
        B: PinMemory,
    {
        if pin::can_pin() { self.mapped(pin::pin) } else { self }
    }

    /// One pass through this rank's batches. Each call is another epoch; see [`DataLoader`].
    ///
    /// What is wrong with the pass as a whole is told in place of its first batch.
    pub fn iter(&self) -> Batches<B> {
        self.begin().unwrap_or_else(Batches::failed)
    }

    /// As [`iter`](Self::iter), under a name that `#[distributed]` knows where it cannot see that this is a loader: in a field,
    /// or from a function.
    pub fn batches(&self) -> Batches<B> {
        self.iter()
    }

    /// Sets the epoch of the next pass, counted from 0 and the same on all ranks (`sampler.set_epoch`). A loop that does not
    /// say so has another order in each pass all the same. Who passes through one epoch twice gets another order the second
    /// time.
    pub fn set_epoch(&self, epoch: u64) {
        self.course().told = Some(epoch);
    }

    /// How many batches this rank gets in a pass, in the scope that the process is in; 0 for a stream, whose length nobody
    /// knows, and where a pass would fail.
    #[must_use]
    pub fn len(&self) -> usize {
        let pending = self.course().pending.as_ref().filter(|state| !state.finished).cloned();
        let first = pending.map_or(0, |state| state.taken as usize);
        let pass =
            self.sampler.as_ref().map(|sampler| self.pass(sampler.len(), first, current_share()));
        pass.and_then(Result::ok).map_or(0, |pass| pass.batches())
    }

    /// Whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples in the data set; `None` for a stream.
    #[must_use]
    pub fn samples(&self) -> Option<usize> {
        self.source.len()
    }

    /// Where the last pass stands, after the batch that it gave last: to be saved with the weights, by any rank.
    ///
    /// # Errors
    /// [`StateError::NotBegun`] before the first pass, [`StateError::Iterable`] for a stream.
    pub fn state(&self) -> Result<LoaderState, StateError> {
        if self.sampler.is_none() {
            return Err(StateError::Iterable);
        }
        let course = self.course();
        match (&course.pending, &course.latest) {
            (Some(pending), _) => Ok(pending.clone()),
            (None, Some(latest)) => Ok(latest.state()),
            (None, None) => Err(StateError::NotBegun),
        }
    }

    /// Goes on from a state: the next pass gives the rest of its epoch, on as many ranks as there are then. Every rank must be
    /// given the same state. See [`LoaderState`] for what must be the same as when it was saved, and what need not be.
    ///
    /// # Errors
    /// [`StateError::Iterable`] for a stream. What else does not fit is told in place of the first batch.
    pub fn resume(&self, state: LoaderState) -> Result<(), StateError> {
        if self.sampler.is_none() {
            return Err(StateError::Iterable);
        }
        let mut course = self.course();
        course.passes.resume_after(state.pass);
        course.pending = Some(state);
        Ok(())
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        // Every change is whole before anything can panic.
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Result<Batches<B>, LoaderError> {
        let begin = self.next_pass()?;
        if !begin.share.is_alone() {
            advice::dealt_out();
        }
        let seed = PassSeed::new(begin.order.seed, begin.order.epoch);
        match &self.sampler {
            Some(sampler) => self.begin_numbered(sampler.as_ref(), begin, seed),
            None => self.begin_stream(begin, seed),
        }
    }

    /// The number of the pass, and what it goes on from.
    fn next_pass(&self) -> Result<Begin, LoaderError> {
        let session = session::current();
        let scope_seed = session.as_ref().map_or(0, |session| session.options().seed);
        let seed = self.settings.seed.unwrap_or(scope_seed);
        let share = if self.settings.whole { Share::ALONE } else { current_share() };
        let mut course = self.course();
        let told = course.told.or_else(epoch::told);
        let Some(state) = course.pending.take().filter(|state| !state.finished) else {
            let order = Order { seed, epoch: course.passes.next(told) };
            return Ok(Begin { share, order, first: 0, resumed: None });
        };
        if let Some(told) = told.filter(|&told| told != state.epoch()) {
            return Err(StateError::Epoch { saved: state.epoch(), told }.into());
        }
        if state.seed != seed {
            return Err(StateError::Seed { saved: state.seed, now: seed }.into());
        }
        let order = Order { seed, epoch: state.pass };
        Ok(Begin { share, order, first: state.taken as usize, resumed: Some(state) })
    }

    fn pass(&self, len: usize, first: usize, share: Share) -> Result<Pass, super::DataError> {
        let Settings { batch_size, drop_last, remainder, whole, .. } = self.settings;
        let rule = match (whole, remainder, batch_rule()) {
            (true, _, _) => Rule::Whole,
            (false, Remainder::Repeat | Remainder::Drop, Batch::Global) => Rule::Global,
            (false, remainder, _) => Rule::PerRank(remainder),
        };
        Pass::new(len, first, batch_size, share, drop_last, rule)
    }

    fn begin_numbered(
        &self,
        sampler: &dyn Sampler,
        begin: Begin,
        seed: PassSeed,
    ) -> Result<Batches<B>, LoaderError> {
        let Begin { share, order, first, resumed } = begin;
        // Checked before the order is drawn, which may take long.
        if let Some(state) = &resumed
            && state.places != sampler.len() as u64
        {
            let now = sampler.len() as u64;
            return Err(StateError::Samples { saved: state.places, now }.into());
        }
        let pass = self.pass(sampler.len(), first, share)?;
        let indices = sampler.indices(order)?;
        let fingerprint = indices.fingerprint();
        if resumed.is_some_and(|state| state.order != fingerprint) {
            return Err(StateError::Order.into());
        }
        let holder = pass.is_joint().then(Holder::new);
        let begun = LoaderState {
            pass: order.epoch,
            seed: order.seed,
            places: indices.len() as u64,
            taken: first as u64,
            finished: false,
            order: fingerprint,
        };
        let plan = Arc::new(PassPlan { pass, indices, seed });
        let progress = Arc::new(Progress::new(Arc::clone(&plan), begun));
        self.course().latest = Some(Arc::clone(&progress));
        let workers = self.settings.workers.count().min(pass.batches());
        let task = |first, step| Task::Numbered { plan: Arc::clone(&plan), first, step };
        let supply = match workers {
            0 => Supply::Here(self.source.reader(task(0, 1))),
            workers => self.hire(workers, share, seed, |k| task(k, workers))?,
        };
        let end = End::Count(Numbered { plan, progress, holder });
        Ok(Batches::new(supply, end, share, self.settings.remainder))
    }

    fn begin_stream(&self, begin: Begin, seed: PassSeed) -> Result<Batches<B>, LoaderError> {
        let Begin { share, order, .. } = begin;
        let workers = self.settings.workers.count();
        let readers = workers.max(1);
        let part = |k: usize| {
            let world_size = share.world_size().saturating_mul(readers);
            Share::new(share.rank() * readers + k, world_size).map_err(super::DataError::from)
        };
        let parts: Vec<Share> = (0..readers).map(part).collect::<Result<_, _>>()?;
        let Settings { drop_last, remainder, .. } = self.settings;
        let batch = self.stream_batch(share)?;
        let task =
            |k: usize| Task::Stream { share: parts[k], epoch: order.epoch, seed, batch, drop_last };
        let supply = match workers {
            0 => Supply::Here(self.source.reader(task(0))),
            workers => self.hire(workers, share, seed, task)?,
        };
        let voted = !share.is_alone() && remainder != Remainder::Uneven;
        let end = if voted { End::Voted } else { End::Own };
        Ok(Batches::new(supply, end, share, remainder))
    }

    /// Samples in a batch of a stream, of which each rank makes its own.
    fn stream_batch(&self, share: Share) -> Result<usize, LoaderError> {
        let Settings { batch_size, remainder, .. } = self.settings;
        if batch_rule() == Batch::PerRank || remainder == Remainder::Uneven {
            return Ok(batch_size);
        }
        if batch_size % share.world_size() != 0 {
            return Err(LoaderError::Setting {
                setting: "`batch_size` is no multiple of the number of ranks, which share a batch of a stream evenly under \
                          `batch = \"global\"`; take one that is",
            });
        }
        Ok(batch_size / share.world_size())
    }

    fn hire(
        &self,
        workers: usize,
        share: Share,
        seed: PassSeed,
        task: impl Fn(usize) -> Task,
    ) -> Result<Supply<B>, LoaderError> {
        let base = seed.base(share.rank());
        let orders = |id: usize| Orders {
            source: Arc::clone(&self.source),
            task: task(id),
            info: WorkerInfo { id, num_workers: workers, seed: base.wrapping_add(id as u64) },
            init: self.settings.init.clone(),
        };
        let orders = (0..workers).map(orders).collect();
        Ok(Supply::Crew(Crew::start(orders, self.settings.prefetch, self.settings.timeout)?))
    }
}

/// What a batch size means in the scope that this process is in.
fn batch_rule() -> Batch {
    session::current().map_or(Batch::PerRank, |session| session.options().batch)
}

impl<B: Send + 'static> IntoIterator for &DataLoader<B> {
    type Item = Result<B, LoaderError>;
    type IntoIter = Batches<B>;

    fn into_iter(self) -> Batches<B> {
        self.iter()
    }
}

impl<B: Send + 'static> IntoIterator for &mut DataLoader<B> {
    type Item = Result<B, LoaderError>;
    type IntoIter = Batches<B>;

    fn into_iter(self) -> Batches<B> {
        self.iter()
    }
}

impl<B> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.source.len())
            .field("sampler", &self.sampler)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
