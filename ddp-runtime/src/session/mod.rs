//! What all of a scope's parts share while it lasts: the group, the reducer, and the first error.
//!
//! One lock guards group and reducer. It is taken by the thread that trains, and during a backward by the engine's threads,
//! one hook at a time; nobody else waits for it.
mod backward;
mod leave;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use ddp_env::{Launch, Topology};
use tch::Tensor;
use tch::nn::VarStore;

use crate::batch_norm::{Choice, Layers};
use crate::bridge::{BatchNormKernel, BatchNormObserver};
use crate::comm::GradientMemory;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::group::Group;
use crate::hook::CommHook;
use crate::inner::{Inner, check_options, share_order};
use crate::options::Options;
use crate::random;
use crate::sync::{Layout, Reducer};
use crate::trace;
use crate::vote;

const ALONE: &str = "a collective or backward was reached inside a section that only one rank runs";
const OUT_OF_ALONE: &str =
    "take it out of the `main_only` or `main_first` around it, where all ranks reach it";

/// A scope of more than one rank.
pub(crate) struct Session {
    topology: Topology,
    options: Options,
    bucket_bytes: usize,
    thread: ThreadId,
    name: String,
    inner: Mutex<Inner>,
    batch_norm: Mutex<Layers>,
    /// While some layers are synchronised.
    batch_norm_kernel: Mutex<Option<BatchNormKernel>>,
    first_error: Mutex<Option<Error>>,
    weights_equal: AtomicBool,
    turns: AtomicU64,
    epochs_begun: AtomicBool,
}

static CURRENT: Mutex<Option<Arc<Session>>> = Mutex::new(None);

fn current_slot() -> MutexGuard<'static, Option<Arc<Session>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session of the scope that this process is in, if it has more than one rank.
pub(crate) fn current() -> Option<Arc<Session>> {
    current_slot().clone()
}

impl Session {
    /// Connects all ranks and becomes the current session.
    pub(crate) fn start(
        launch: &Launch,
        name: &str,
        generation: u64,
        options: Options,
    ) -> Result<Arc<Self>> {
        let mut group = Group::connect(launch, generation, &options)?;
        check_options(&mut group, &options)?;
        let bucket_bytes = group.bucket_bytes(&options)?;
        trace::note_bucket_bytes(bucket_bytes);
        let choice = if options.sync_batch_norm { Choice::Synchronised } else { Choice::Local };
        let memory = group.data().gradient_memory();
        let session = Arc::new(Self {
            topology: launch.topology,
            thread: std::thread::current().id(),
            name: name.to_owned(),
            inner: Mutex::new(Inner {
                group,
                reducer: Reducer::new(&options, Layout::new(bucket_bytes, memory)),
            }),
            bucket_bytes,
            options,
            batch_norm: Mutex::new(Layers::new(choice)),
            batch_norm_kernel: Mutex::new(None),
            first_error: Mutex::new(None),
            weights_equal: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            epochs_begun: AtomicBool::new(false),
        });
        *current_slot() = Some(Arc::clone(&session));
        if choice == Choice::Synchronised {
            session.install_batch_norm()?;
        }
        Ok(session)
    }

    /// No longer the current session.
    pub(crate) fn detach(&self) {
        *current_slot() = None;
        *self.batch_norm_kernel.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// What messages call the scope.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How many backwards there have been.
    pub(crate) fn backwards(&self) -> i64 {
        self.lock().group.backwards()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The error that made the group unusable.
    pub(crate) fn first_error(&self) -> Option<Error> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the data plane is called.
    pub(crate) fn backend(&self) -> &'static str {
        self.lock().group.data().name()
    }

    /// Memory in which backwards make large gradients, if the data plane has any.
    pub(crate) fn gradient_memory(&self) -> Option<Arc<GradientMemory>> {
        self.lock().group.data().gradient_memory()
    }

    /// The size of gradient buckets.
    pub(crate) fn bucket_bytes(&self) -> usize {
        self.bucket_bytes
    }

    /// Adds a store to those that are kept equal.
    pub(crate) fn register(&self, store: &VarStore) {
        self.batch_norm().know(store);
        self.lock().reducer.stores().register(store);
    }

    /// Which `BatchNorm` layers are synchronised.
    pub(crate) fn batch_norm(&self) -> MutexGuard<'_, Layers> {
        self.batch_norm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what becomes of the `BatchNorm` layers of a store.
    pub(crate) fn choose_batch_norm(&self, store: &VarStore, choice: Choice) -> Result<()> {
        self.batch_norm().choose(store, choice);
        match choice {
            Choice::Synchronised => self.install_batch_norm(),
            Choice::Local => Ok(()),
        }
    }

    fn install_batch_norm(&self) -> Result<()> {
        let mut kernel = self.batch_norm_kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if kernel.is_none() {
            let observer = || current().map(|session| session as Arc<dyn BatchNormObserver>);
            *kernel = Some(
                BatchNormKernel::install(observer).during("installing synchronised BatchNorm")?,
            );
        }
        Ok(())
    }

    /// Makes all registered stores equal, as far as they are not. After the first time each rank draws its own random
    /// numbers.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.run(|inner| inner.reducer.synchronize_stores(&mut inner.group))?;
        self.weights_are_equal();
        Ok(())
    }

    /// A batch was drawn: layers that were added since the last one are made equal before they are used.
    pub(crate) fn step_begins(&self) -> Result<()> {
        if self.takes_no_part() || !self.lock().reducer.stores_have_grown() {
            return Ok(());
        }
        self.synchronize()
    }

    /// A loop over data has ended: what has accumulated in a group that stays short is averaged.
    pub(crate) fn loop_ends(&self) -> Result<()> {
        if self.takes_no_part() {
            return Ok(());
        }
        self.run(|inner| inner.reducer.average_accumulated(&mut inner.group))
    }

    /// From now on buckets are averaged by `hook`.
    pub(crate) fn set_hook(&self, hook: Box<dyn CommHook>) -> Result<()> {
        let name = hook.name();
        // The operation's own subject: no tensor has its hash.
        self.collective(Operation::Collective, u64::MAX, |group| {
            let (control, watch) = group.control();
            let names = control.gather_texts(watch, &name)?;
            match names.iter().position(|name| *name != names[0]) {
                None => Ok(()),
                Some(rank) => Err(Error::mismatch(
                    format!(
                        "rank 0 registers the hook `{}`, rank {rank} `{}`",
                        names[0], names[rank]
                    ),
                    "register the same communication hook on every rank",
                )),
            }
        })?;
        self.lock().reducer.set_hook(hook);
        Ok(())
    }

    /// Averages all gradients of backwards that averaged none.
    pub(crate) fn average_pending(&self) -> Result<()> {
        self.run(|inner| inner.reducer.average_pending(&mut inner.group))
    }

    /// Leaves a leaf out of all that is averaged.
    pub(crate) fn ignore(&self, leaf: &Tensor) -> Result<()> {
        self.run(|inner| inner.reducer.ignore(leaf))
    }

    /// Whether data are drawn where no rank can ask another: on a thread of its own, in a section of one rank, after an error.
    fn takes_no_part(&self) -> bool {
        std::thread::current().id() != self.thread
            || vote::is_alone()
            || self.first_error().is_some()
    }

    /// Runs `body` with gradient synchronisation off.
    pub(crate) fn muted<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a Session, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.lock().reducer.mute(self.1);
            }
        }
        let before = self.lock().reducer.mute(true);
        let _restore = Restore(self, before);
        body()
    }

    /// Announces `operation` and, once all ranks have, runs `body` with the group.
    pub(crate) fn collective<T>(
        &self,
        operation: Operation,
        subject: u64,
        body: impl FnOnce(&mut Group) -> Result<T>,
    ) -> Result<T> {
        self.collective_with_word(operation, subject, 0, |group, _| body(group))
    }

    /// As [`collective`](Self::collective); `body` is told the main rank's word.
    pub(crate) fn collective_with_word<T>(
        &self,
        operation: Operation,
        subject: u64,
        word: i64,
        body: impl FnOnce(&mut Group, i64) -> Result<T>,
    ) -> Result<T> {
        self.run(|inner| {
            let headers = inner.announce(operation, subject, word)?;
            if operation.needs_all_ranks()
                && let Some(rank) = headers.iter().position(|header| header.aside)
            {
                return Err(Error::unsupported(
                    format!("rank {rank} has no more steps to take, and is missing in a collective"),
                    "call collectives, all-reduces excepted, where all ranks still train",
                ));
            }
            if let Some(rank) = headers.iter().position(|header| header.subject != subject) {
                return Err(Error::mismatch(
                    format!(
                        "ranks {} and {rank} called collectives of another kind, or with tensors of other shapes",
                        self.topology.rank
                    ),
                    "call the same collectives in the same order, with tensors of one shape and dtype",
                ));
            }
            body(&mut inner.group, headers[0].extra)
        })
    }

    /// An order of `n` places that rank 0 draws, on every rank.
    pub(crate) fn joint_order(
        &self,
        n: i64,
        mut draw: impl FnMut() -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.run(|inner| {
            let headers = inner.announce(Operation::Shuffle, 0, n)?;
            if let Some(rank) = headers.iter().position(|header| header.extra != headers[0].extra) {
                let (first, other) = (headers[0].extra, headers[rank].extra);
                return Err(Error::mismatch(
                    format!("rank 0 shuffles {first} samples, rank {rank} {other}"),
                    "read the same data set, in the same order, on every rank",
                ));
            }
            share_order(&mut inner.group, n, Some(&mut draw))
        })
    }

    /// The number of an epoch that begins. The first one must be that of all ranks: a rank that resumes from a file which
    /// the others cannot see would take fewer steps, and in each another part of the data than the others leave to it.
    pub(crate) fn begin_epoch(&self, epoch: u64) -> Result<()> {
        if self.epochs_begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.run(|inner| {
            let headers = inner.announce(Operation::Epoch, 0, epoch.cast_signed())?;
            match headers.iter().position(|header| header.extra != headers[0].extra) {
                Some(rank) => Err(Error::mismatch(
                    format!(
                        "rank 0 begins with epoch {}, rank {rank} with epoch {}",
                        headers[0].extra, headers[rank].extra
                    ),
                    "resume every rank from the same file, on a disk that all of them see",
                )),
                None => Ok(()),
            }
        })
    }

    /// Announces `operation` with a word, and returns the word of every rank, those excepted that stand aside.
    pub(crate) fn exchange(&self, operation: Operation, word: i64) -> Result<Vec<i64>> {
        self.run(|inner| {
            let headers = inner.announce(operation, 0, word)?;
            let present = headers.iter().filter(|header| !header.aside);
            Ok(present.map(|header| header.extra).collect())
        })
    }

    /// Runs `body`, and keeps its error as the one that made the group unusable.
    fn run<T>(&self, body: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        self.check_usable()?;
        if vote::is_alone() {
            return self.keep(Err(Error::unsupported(ALONE, OUT_OF_ALONE)));
        }
        if std::thread::current().id() != self.thread {
            return Err(Error::unsupported(
                "a collective was called on a thread of its own",
                "call it on the thread that entered the scope",
            ));
        }
        let result = body(&mut self.lock());
        self.keep(result)
    }

    /// An error once the group is unusable.
    fn check_usable(&self) -> Result<()> {
        match self.first_error() {
            Some(first) => Err(Error::Poisoned { first: first.to_string() }),
            None => Ok(()),
        }
    }

    /// Keeps an error as the one that made the group unusable.
    pub(crate) fn keep<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.fail(error))
    }

    fn weights_are_equal(&self) {
        if !self.weights_equal.swap(true, Ordering::Relaxed) {
            random::become_own(self.topology.rank);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
