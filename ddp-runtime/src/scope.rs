//! The scope: while it lasts, every backward of this process is synchronised with those of the other ranks.
//!
//! A scope begins with [`init`] (or at the head of a `#[distributed]` function) and ends with [`Scope::finish`]. A scope inside
//! a scope joins it. With one rank a scope does nothing at all: no socket, no thread, no engine.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ddp_env::failure::FailureKind;
use ddp_env::{LauncherKind, Topology};
use tch::nn::VarStore;
use tch::{Device, Tensor};

use crate::bridge::{self, BackwardObserver, Lend, Route};
use crate::comm::{ReduceOp, open_cuda};
use crate::control::Operation;
use crate::data::{Share, epoch, weight};
use crate::device;
use crate::error::{During, Error, Result};
use crate::hook::CommHook;
use crate::options::{Backend, Batch, Loss, Malloc, Options};
use crate::output::{self, Marks, Print};
use crate::random;
use crate::report;
use crate::save;
use crate::session::{self, Session};
use crate::signal;
use crate::trace;
use crate::world;

/// A stretch of the program in which gradients are averaged over all ranks.
///
/// Dropping a scope that was not finished tells the other ranks that this one has failed: a scope ends well only through
/// [`finish`](Self::finish).
#[must_use = "gradients are synchronised only while the scope lives"]
pub struct Scope {
    state: State,
}

enum State {
    /// One rank: nothing to do, but that the epoch that was told before stands again when it ends.
    Single(Option<u64>),
    /// Inside another scope, whose epoch stands again when this one ends.
    Joined(Arc<Session>, Option<u64>),
    /// The outermost one. The route is taken away before the session ends.
    Outermost(Arc<Session>, Option<Route>),
    /// Over.
    Finished,
}

/// Sets up the process group that the launcher's environment describes, with default options.
///
/// Without a launcher the scope has one rank and does nothing.
///
/// # Errors
/// [`Error::Environment`], [`Error::Option`] or [`Error::Setup`], each with the variable or step and the cure.
pub fn init() -> Result<Scope> {
    Scope::with_options("main", Options::default())
}

impl Scope {
    /// As [`init`], with options. `name` is what messages call the scope: the training function's name.
    ///
    /// # Errors
    /// As [`init`].
    pub fn with_options(name: &str, options: Options) -> Result<Self> {
        let options = options.with_environment()?;
        let Some(launch) = world::launch()?.filter(|launch| launch.topology.world_size > 1) else {
            if options.trace.is_some() {
                output::notice(format_args!("no timeline: one rank has nobody to wait for"));
            }
            return Ok(Self { state: State::Single(epoch::replace_told(None)) });
        };
        if let Some(session) = session::current() {
            check_joined(&options, session.options())?;
            let outer_epoch = epoch::replace_told(None);
            return Ok(Self { state: State::Joined(session, outer_epoch) });
        }
        check_loss(&options)?;
        options.check()?;
        prepare_process(&options);
        let generation = next_generation();
        let session = Session::start(launch, name, generation, options).inspect_err(|error| {
            let rank = launch.topology.rank;
            let kind = report::kind(error);
            report::write(&report::record(rank, kind, name.to_owned(), error.to_string(), None));
        })?;
        let observer: Arc<dyn BackwardObserver> = Arc::clone(&session) as _;
        let lender = session.gradient_memory().map(|memory| memory as Arc<dyn Lend>);
        let route = Route::new(observer, lender)
            .map_err(|error| Error::setup("installing the autograd engine", error))?;
        let marks = match launch.launcher {
            LauncherKind::CargoDdp => Marks::Launcher,
            _ => Marks::Ours,
        };
        output::configure(session.options().print, launch.topology.rank, marks);
        Ok(Self { state: State::Outermost(session, Some(route)) })
    }

    fn session(&self) -> Option<&Arc<Session>> {
        match &self.state {
            State::Joined(session, _) | State::Outermost(session, _) => Some(session),
            State::Single(_) | State::Finished => None,
        }
    }

    fn topology(&self) -> Topology {
        self.session().map_or_else(Topology::single, |session| session.topology())
    }

    /// This process's position among all, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.topology().rank
    }

    /// The number of processes.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.topology().world_size
    }

    /// Whether this is rank 0, which prints and saves.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.topology().is_main()
    }

    /// The device of this rank.
    #[must_use]
    pub fn device(&self) -> Device {
        device::device()
    }

    /// This rank's part of shared data.
    #[must_use]
    pub fn share(&self) -> Share {
        current_share()
    }

    /// Registers a store: what is in it now is made equal at once (rank 0's values count), what is added later before its
    /// first step.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names the first variable that differs in name, shape or dtype, and the rank.
    pub fn register(&self, store: &VarStore) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        session.register(store);
        session.synchronize()
    }

    /// Runs `body` without averaging: its backwards add to each rank's own gradients, which the next backward outside averages
    /// together with its own. All ranks must do the same.
    pub fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        match self.session() {
            Some(session) => session.muted(body),
            None => body(),
        }
    }

    /// From now on gradients are averaged by `hook`, in place of an all-reduce, as PyTorch's `register_comm_hook` does it. All
    /// ranks must register the same hook, at the same place.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when the ranks' hooks have different names.
    pub fn register_comm_hook(&self, hook: impl CommHook + 'static) -> Result<()> {
        match self.session() {
            Some(session) => session.set_hook(Box::new(hook)),
            None => Ok(()),
        }
    }

    /// Says which epoch begins, for the shared iterators made from now on ([`ShardedIter2`](crate::data::ShardedIter2) and the
    /// like, by [`data::epoch`](crate::data::epoch)). A sampler of one's own is told by itself.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when the first epoch is not the same on all ranks, as where one of them alone has resumed.
    pub fn begin_epoch(&self, epoch: u64) -> Result<()> {
        epoch::tell(epoch);
        self.session().map_or(Ok(()), |session| session.begin_epoch(epoch))
    }

    /// Saves the store on the main rank, under another name first, and returns on all ranks when the file is complete.
    ///
    /// # Errors
    /// [`Error::Torch`] on all ranks when the main one could not write it.
    pub fn save(&self, store: &VarStore, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        save::store(path, |partial| store.save(partial))
            .during(&format!("saving {}", path.display()))
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when another rank is elsewhere, [`Error::Peer`] when one has failed.
    pub fn barrier(&self) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        session.collective(Operation::Barrier, 0, |_| Ok(()))
    }

    /// Combines the ranks' tensors of one shape, in place; every rank has the result.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); also when the shapes or dtypes differ.
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        crate::collective::all_reduce(session, tensor, op)
    }

    /// Copies the root's tensor over everyone else's, in place.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); also when there is no such rank.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        crate::collective::broadcast(session, tensor, root)
    }

    /// The ranks' tensors of one shape, in the order of the ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        match self.session() {
            Some(session) => crate::collective::all_gather(session, tensor),
            None => Ok(vec![tensor.copy()]),
        }
    }

    /// Ends the scope: waits until all ranks end it, and closes the connections.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when another rank goes on training, [`Error::Peer`] when one has failed, and the first error of
    /// this scope if there was one.
    pub fn finish(mut self) -> Result<()> {
        self.close()
    }

    /// Leaves a scope that had joined another, or has one rank.
    fn rejoin(&mut self) {
        if let State::Joined(_, outer_epoch) | State::Single(outer_epoch) = self.state {
            epoch::replace_told(outer_epoch);
            self.state = State::Finished;
        }
    }

    pub(crate) fn close(&mut self) -> Result<()> {
        let State::Outermost(session, _) = &self.state else {
            self.rejoin();
            return Ok(());
        };
        if let Some(error) = session.first_error() {
            return Err(error);
        }
        session.leave()?;
        session.detach();
        leave_process();
        // The route first, then the session with the connections; all ranks have said goodbye.
        self.state = State::Finished;
        Ok(())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.rejoin();
        let State::Outermost(session, route) = std::mem::replace(&mut self.state, State::Finished)
        else {
            return;
        };
        abandon(&session);
        trace::abandon();
        session.abort();
        drop(route);
        session.detach();
        leave_process();
        // An operation may be under way that waits for other ranks, and closing the connections would wait for it. They close
        // with the process.
        std::mem::forget(session);
    }
}

/// [`Scope::no_sync`] in the scope that this process is in.
pub(crate) fn no_sync<T>(body: impl FnOnce() -> T) -> T {
    match session::current() {
        Some(session) => session.muted(body),
        None => body(),
    }
}

const LEFT_EARLY: &str = "it returned early with an error, which its own output shows";

/// A scope ends early: tells everyone why.
fn abandon(session: &Session) {
    if session.first_error().is_some() {
        // They have been told.
        return;
    }
    let panic = std::thread::panicking().then(report::last_panic).flatten();
    let (kind, message, place) = match panic {
        Some(panic) => (FailureKind::Panic, format!("panicked: {}", panic.message), panic.place),
        // The error itself is on its way to the caller, who prints it: the launcher takes its text from there.
        None => (FailureKind::Error, String::new(), None),
    };
    session.tell_others(if message.is_empty() { LEFT_EARLY } else { &message });
    report::write(&session.record(kind, message, place));
}

/// A scope inside another has the other's options. What would train on other batches than it says is refused.
fn check_joined(inner: &Options, outer: &Options) -> Result<()> {
    if inner.batch == Batch::Global && outer.batch != Batch::Global {
        return Err(Error::unsupported(
            "batch = \"global\" stands on a function that another one, without it, has called",
            "write it on the outermost of the two",
        ));
    }
    if inner.loss == Loss::Sum && outer.loss != Loss::Sum {
        return Err(Error::unsupported(
            "loss = \"sum\" stands on a function that another one, without it, has called",
            "write it on the outermost of the two",
        ));
    }
    if inner.sync_batch_norm && !outer.sync_batch_norm {
        return Err(Error::unsupported(
            "sync_batch_norm stands on a function that another one, without it, has called",
            "write it on the outermost of the two, or give the store to `sync_batch_norm`",
        ));
    }
    Ok(())
}

/// A sum is scaled only where the ranks share a batch.
fn check_loss(options: &Options) -> Result<()> {
    if options.loss == Loss::Sum && options.batch != Batch::Global {
        return Err(Error::unsupported(
            "loss = \"sum\" has no meaning where every rank has batches of its own, as these keep their size and a sum \
             over them its scale",
            "leave it out, or write batch = \"global\" beside it",
        ));
    }
    Ok(())
}

/// What a process does once before its first group.
fn prepare_process(options: &Options) {
    report::remember_panics();
    // Without this c10d's warnings appear with C++ backtraces whatever TORCH_CPP_LOG_LEVEL says; a failure here only means
    // that they do.
    let _ = bridge::init_logging();
    if matches!(options.backend, Backend::Auto | Backend::Nccl) {
        open_cuda();
    }
    random::become_shared();
    weight::begin(options.loss);
    let set_by_user =
        std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("MALLOC_"));
    if options.malloc == Malloc::Keep && !set_by_user {
        bridge::keep_freed_memory();
    }
}

fn leave_process() {
    random::become_shared();
    signal::leave_scope();
    epoch::replace_told(None);
    output::configure(Print::Main, world::rank(), Marks::Ours);
}

/// All ranks pass through the same scopes in the same order, so this number names the group.
fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// This rank's part of shared data, in the scope that this process is in.
pub(crate) fn current_share() -> Share {
    session::current().map_or(Share::ALONE, |session| {
        let topology = session.topology();
        // A topology's rank is below its world size.
        Share::new(topology.rank, topology.world_size).unwrap_or(Share::ALONE)
    })
}

/// Ends this process with an error that every rank reports by itself.
pub(crate) fn end_process(error: &Error) -> ! {
    std::eprintln!("error: rank {}: {error}", world::rank());
    std::process::exit(i32::from(report::exit_code(error)))
}
