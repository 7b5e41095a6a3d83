//! The workers of one pass: threads that read ahead, a bounded channel from each, and how they are called back.
//!
//! # Note [Order and memory]
//!
//! Worker `k` of `n` makes batches `k`, `k + n`, .. and hands them over through a channel of its own, in order; whoever
//! iterates takes from the channels in turn. So batches come in order whatever the workers do, with nothing to sort and
//! nothing kept aside. A channel holds one batch less than the prefetch factor, and the worker holds the other one while it
//! waits for room: so no more batches exist ahead of the loop than prefetch factor times workers, and a slow loop stops
//! its workers.
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::LoaderError;
use super::seeds::{self, Post, WorkerInfo};
use super::source::{Source, Task};
use crate::bridge;
use crate::data::dataset::BoxError;
use crate::world;

/// How long workers may take to end once nobody wants their batches: they end between two samples.
const GRACE: Duration = Duration::from_secs(5);

/// What the user wants done at the head of each worker.
pub(super) type WorkerInit = dyn Fn(WorkerInfo) -> Result<(), BoxError> + Send + Sync;

/// What a worker hands over.
enum Parcel<B> {
    Batch(B),
    Failed(LoaderError),
    /// It has no more.
    End,
}

/// One worker, as seen from the loop.
struct Worker<B> {
    parcels: Receiver<Parcel<B>>,
    post: Arc<Post>,
    number: usize,
    over: bool,
}

/// How many threads are still there.
#[derive(Default)]
struct Latch {
    at_work: Mutex<usize>,
    changed: Condvar,
}

impl Latch {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.at_work.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Whether all are gone, after waiting at most this long.
    fn wait(&self, limit: Duration) -> bool {
        let at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(at_work, limit, |at_work| *at_work > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// Signs a thread off, however it ends.
struct SignOff(Arc<Latch>);

impl Drop for SignOff {
    fn drop(&mut self) {
        self.0.change(|at_work| *at_work -= 1);
    }
}

/// The workers of one pass. Dropping it ends them.
pub(super) struct Crew<B> {
    workers: Vec<Worker<B>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    latch: Arc<Latch>,
    turn: usize,
    timeout: Option<Duration>,
}

/// What a worker begins with.
pub(super) struct Orders<B> {
    pub(super) source: Arc<dyn Source<B>>,
    pub(super) task: Task,
    pub(super) info: WorkerInfo,
    pub(super) init: Option<Arc<WorkerInit>>,
}

impl<B: Send + 'static> Crew<B> {
    /// Starts a worker for each of the orders.
    ///
    /// # Errors
    /// [`LoaderError::Spawn`]; those that were started end.
    pub(super) fn start(
        orders: Vec<Orders<B>>,
        prefetch: usize,
        timeout: Option<Duration>,
    ) -> Result<Self, LoaderError> {
        let mut crew = Self {
            workers: Vec::with_capacity(orders.len()),
            threads: Vec::with_capacity(orders.len()),
            stop: Arc::default(),
            latch: Arc::default(),
            turn: 0,
            timeout,
        };
        for orders in orders {
            crew.hire(orders, prefetch)?;
        }
        Ok(crew)
    }

    fn hire(&mut self, orders: Orders<B>, prefetch: usize) -> Result<(), LoaderError> {
        let number = orders.info.id;
        let (sender, parcels) = sync_channel(prefetch.saturating_sub(1));
        let post = Arc::new(Post::new());
        self.latch.change(|at_work| *at_work += 1);
        let sign_off = SignOff(Arc::clone(&self.latch));
        let (stop, shown) = (Arc::clone(&self.stop), Arc::clone(&post));
        let thread =
            std::thread::Builder::new().name(format!("ddp-load-{number}")).spawn(move || {
                // Dropped last.
                let _sign_off = sign_off;
                work(&orders, shown, &sender, &stop);
            });
        self.threads.push(thread.map_err(|source| LoaderError::Spawn { worker: number, source })?);
        self.workers.push(Worker { parcels, post, number, over: false });
        Ok(())
    }

    /// The next batch in order; `None` when no worker has any.
    ///
    /// # Errors
    /// The error of the worker whose turn it is.
    pub(super) fn next(&mut self) -> Result<Option<B>, LoaderError> {
        // Each worker is asked until it says that it has no more.
        while let Some(at) = self.whose_turn() {
            let worker = &mut self.workers[at];
            self.turn = at + 1;
            match receive(worker, self.timeout)? {
                Parcel::Batch(batch) => return Ok(Some(batch)),
                Parcel::Failed(error) => return Err(error),
                Parcel::End => worker.over = true,
            }
        }
        Ok(None)
    }

    /// The first worker from the one whose turn it is that is not over.
    fn whose_turn(&self) -> Option<usize> {
        let count = self.workers.len();
        (0..count).map(|k| (self.turn + k) % count).find(|&at| !self.workers[at].over)
    }
}

fn receive<B>(worker: &Worker<B>, timeout: Option<Duration>) -> Result<Parcel<B>, LoaderError> {
    let lost = LoaderError::Lost { worker: worker.number };
    match timeout {
        None => worker.parcels.recv().map_err(|_| lost),
        Some(limit) => worker.parcels.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Disconnected => lost,
            RecvTimeoutError::Timeout => {
                LoaderError::Timeout { worker: worker.number, index: worker.post.sample(), limit }
            }
        }),
    }
}

impl<B> Drop for Crew<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let posts: Vec<_> =
            self.workers.iter().map(|worker| (worker.number, Arc::clone(&worker.post))).collect();
        // Whoever waits for room learns that nobody will make any.
        self.workers.clear();
        if self.latch.wait(GRACE) {
            for thread in self.threads.drain(..) {
                // Panics were caught; the thread has nothing left to do.
                let _ = thread.join();
            }
            return;
        }
        for ((number, post), _) in
            posts.iter().zip(&self.threads).filter(|(_, thread)| !thread.is_finished())
        {
            let at = post.sample().map_or_else(String::new, |index| format!(" at sample {index}"));
            std::eprintln!(
                "ddp: rank {}: worker {number} of a data loader has not ended within {} s and is left behind{at}",
                world::rank(),
                GRACE.as_secs()
            );
        }
    }
}

/// The life of a worker.
fn work<B: 'static>(
    orders: &Orders<B>,
    post: Arc<Post>,
    sender: &SyncSender<Parcel<B>>,
    stop: &AtomicBool,
) {
    let worker = orders.info.id;
    seeds::become_worker(orders.info, Arc::clone(&post));
    // As PyTorch's workers: several of them, and the thread that trains, would fight over the cores. Where it cannot be set
    // they only do.
    let _ = bridge::compute_alone();
    let life = AssertUnwindSafe(|| live(orders, sender, stop));
    if let Err(panic) = catch_unwind(life) {
        let index = post.sample();
        let message = panic_text(panic.as_ref());
        // An error here means that nobody waits any more; so below.
        let _ = sender.send(Parcel::Failed(LoaderError::Panicked { worker, index, message }));
    }
}

fn live<B: 'static>(orders: &Orders<B>, sender: &SyncSender<Parcel<B>>, stop: &AtomicBool) {
    if let Some(Err(source)) = orders.init.as_ref().map(|init| init(orders.info)) {
        let error = LoaderError::WorkerInit { worker: orders.info.id, source };
        let _ = sender.send(Parcel::Failed(error));
        return;
    }
    let mut reader = orders.source.reader(orders.task.clone());
    while !stop.load(Ordering::Relaxed) {
        let parcel = match reader.next(stop) {
            Some(Ok(batch)) => Parcel::Batch(batch),
            Some(Err(error)) => Parcel::Failed(error),
            None => Parcel::End,
        };
        let last = !matches!(parcel, Parcel::Batch(_));
        if sender.send(parcel).is_err() || last {
            return;
        }
    }
}

/// What a panic says, as far as it is a text.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
