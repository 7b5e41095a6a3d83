//! What the expansion of `#[distributed]` calls: one function for each rewrite, nothing a program should name itself.
//!
//! Each is a thin cover over public API. Where the attribute cannot know a type, the function takes any type and acts on
//! those it knows (`Any`), or the expansion lets method resolution choose (`probe`).
mod bars;
mod dealt;
mod files;
mod leave;
mod marked;
mod probe;

use std::any::Any;
use std::cell::Cell;
use std::time::Duration;

use tch::nn::VarStore;
use tch::{Device, Kind, TchError, Tensor};

use crate::advice;
use crate::data::{Order, ShardedIter2, epoch as clock};
use crate::device as devices;
use crate::error::Result;
use crate::options;
use crate::scope::{Scope, current_share, end_process};
use crate::session;
use crate::steps::Steps;

pub use crate::__ddp_progress as progress;
pub use crate::data::{BatchSize, DataError, SplitBatch};
pub use crate::options::Batch;
pub use crate::output::{Level, bar, dbg, eprint, eprintln, logs, print, println};
pub use crate::random::manual_seed;
pub use crate::trace::pause_timeline;
pub use bars::{HideBar, HideNothing};
pub use dealt::{DealtOut, batches};
pub use files::new_folder;
pub use leave::Returning;
pub use marked::{Dealt, Items, shard, split};
pub use probe::{Data, TypeOf, type_of};

/// The traits by whose methods the type of a value decides what becomes of it.
pub mod by_type {
    pub use super::leave::{LeaveOther as _, LeaveResult as _};
    pub use super::marked::{ShardBatches as _, ShardItems as _};
    pub use super::probe::{DataOf as _, DataOther as _};
    pub use super::probe::{
        SaveOther as _, SaveStore as _, SaveUnclear as _, SaveUnclearBehind as _,
    };
}

/// The options written in the attribute.
#[derive(Clone, Debug)]
pub struct Options {
    name: &'static str,
    result: Result<options::Options>,
}

impl Options {
    /// The defaults, for the function called `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, result: Ok(options::Options::default()) }
    }

    /// Writes a value, or keeps the first error that there is.
    fn set<T>(mut self, value: Result<T>, write: impl FnOnce(&mut options::Options, T)) -> Self {
        self.result = self.result.and_then(|mut options| {
            write(&mut options, value?);
            Ok(options)
        });
        self
    }

    /// `batch = ".."`
    #[must_use]
    pub fn batch(self, batch: Batch) -> Self {
        self.set(Ok(batch), |options, value| options.batch = value)
    }

    /// `loss = ".."`
    #[must_use]
    pub fn loss(self, loss: &str) -> Self {
        self.set(options::parse_loss("loss", loss), |options, value| options.loss = value)
    }

    /// `timeout = ..`
    #[must_use]
    pub fn timeout_secs(self, seconds: u64) -> Self {
        self.set(Ok(Duration::from_secs(seconds)), |options, value| options.timeout = value)
    }

    /// `seed = ..`
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.set(Ok(seed), |options, value| options.seed = value)
    }

    /// `bucket_mb = ..`
    #[must_use]
    pub fn bucket_mb(self, mebibytes: f64) -> Self {
        self.set(options::mebibytes("bucket_mb", mebibytes), |options, value| {
            options.bucket_bytes = Some(value)
        })
    }

    /// `sync_batch_norm = ..`
    #[must_use]
    pub fn sync_batch_norm(self, on: bool) -> Self {
        self.set(Ok(on), |options, value| options.sync_batch_norm = value)
    }

    /// `backend = ".."`
    #[must_use]
    pub fn backend(self, backend: &str) -> Self {
        self.set(options::parse_backend("backend", backend), |options, value| {
            options.backend = value
        })
    }

    /// `accumulate = ..`
    #[must_use]
    pub fn accumulate(self, backwards: usize) -> Self {
        self.set(Ok(backwards), |options, value| options.accumulate = value)
    }

    /// `compress = ".."`
    #[must_use]
    pub fn compress(self, form: &str) -> Self {
        self.set(options::parse_compress("compress", form), |options, value| {
            options.compress = value
        })
    }

    /// `debug = ".."`
    #[must_use]
    pub fn debug(self, checks: &str) -> Self {
        self.set(options::parse_debug("debug", checks), |options, value| options.debug = value)
    }

    /// `uneven = ".."`
    #[must_use]
    pub fn uneven(self, rule: &str) -> Self {
        self.set(options::parse_uneven("uneven", rule), |options, value| options.uneven = value)
    }

    /// `print = ".."`
    #[must_use]
    pub fn print(self, print: &str) -> Self {
        self.set(options::parse_print("print", print), |options, value| options.print = value)
    }
}

/// The guard of an annotated function. Dropped before it was left, it tells the other ranks that this one failed.
pub struct Guard(Cell<Option<Scope>>);

/// The head of an annotated function. Ends the process, with the reason, when the group cannot be set up.
#[must_use]
pub fn enter(options: Options) -> Guard {
    let name = options.name;
    if session::current().is_none() {
        advice::begin();
    }
    match options.result.and_then(|options| Scope::with_options(name, options)) {
        Ok(scope) => Guard(Cell::new(Some(scope))),
        Err(error) => end_process(&error),
    }
}

impl Guard {
    /// The end of an annotated function, with what it returns.
    pub fn leave<T>(&self, value: T) -> T {
        if let Some(mut scope) = self.0.take() {
            let session = session::current();
            or_end(scope.close());
            // None now: it was the outermost scope.
            if let (Some(session), None) = (session, session::current())
                && session.topology().is_main()
            {
                let world_size = session.topology().world_size;
                advice::end(session.name(), world_size, session.backwards());
            }
        }
        value
    }

    /// The end of an annotated function that returns a result. With an error the scope is not left but given up.
    pub fn leave_result<T, E>(
        &self,
        value: std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if value.is_ok() { self.leave(value) } else { value }
    }
}

/// Carries out what an annotated function contains without naming it; a failure ends the process.
fn or_end(result: Result<()>) {
    if let Err(error) = result {
        end_process(&error);
    }
}

/// `Device::Cuda(..)` and its like: this rank's device in place of another GPU.
#[must_use]
pub fn device<D: 'static>(mut device: D) -> D {
    if let Some(device) = (&mut device as &mut dyn Any).downcast_mut::<Device>() {
        *device = devices::rank_device(*device);
    }
    device
}

/// `kind::FLOAT_CUDA` and its like.
#[must_use]
pub fn device_kind<K: 'static>(mut kind: K) -> K {
    if let Some((_, device)) = (&mut kind as &mut dyn Any).downcast_mut::<(Kind, Device)>() {
        *device = devices::rank_device(*device);
    }
    kind
}

/// `VarStore::new(..)`: the store is kept equal on all ranks.
pub fn store<T: 'static>(store: T) -> T {
    register(&store);
    store
}

/// A store that the function was given.
pub fn register<T: 'static>(store: &T) {
    if let (Some(store), Some(session)) =
        ((store as &dyn Any).downcast_ref::<VarStore>(), session::current())
    {
        session.register(store);
        advice::store(store);
    }
}

/// Before the first step: makes all registered stores equal.
pub fn synchronize() {
    if let Some(session) = session::current() {
        or_end(session.synchronize());
    }
}

/// The head of an outermost training loop.
pub fn start<I: IntoIterator>(items: I) -> Steps<I::IntoIter> {
    synchronize();
    Steps::new(items.into_iter())
}

/// The number of the epoch that begins, where it is a number. The first must be the same on all ranks.
pub fn epoch<T: 'static>(epoch: &T) {
    let epoch = epoch as &dyn Any;
    macro_rules! number {
        ($($int:ty),*) => {
            None$(.or_else(|| epoch.downcast_ref::<$int>().and_then(|&epoch| u64::try_from(epoch).ok())))*
        };
    }
    if let Some(epoch) = number!(i32, i64, usize, u32, u64, i8, i16, isize, u8, u16, i128, u128) {
        clock::tell(epoch);
        if let Some(session) = session::current() {
            or_end(session.begin_epoch(epoch));
        }
    }
}

/// Before data is shared.
fn deal_out() {
    advice::dealt_out();
    synchronize();
}

/// `#[ddp(each)]`: the rank draws its own items.
pub fn each<I: IntoIterator>(items: I) -> Steps<I::IntoIter> {
    advice::dealt_out();
    start(items)
}

/// `#[ddp(same)]`: every rank takes all items.
pub fn same<I: IntoIterator>(items: I) -> Steps<I::IntoIter> {
    advice::dealt_out();
    start(items)
}

/// What a batch size means in this scope.
fn batch_rule() -> Batch {
    session::current().map_or(Batch::PerRank, |session| session.options().batch)
}

fn order(site: &'static str) -> Order {
    let seed = session::current().map_or(0, |session| session.options().seed);
    Order { seed, epoch: clock::epoch_at(site) }
}

/// `Iter2::new(..)`. The constructor that the program names is not called; to pass it keeps the program's import in use.
#[must_use]
pub fn iter2<C>(
    _constructor: C,
    site: &'static str,
    xs: &Tensor,
    ys: &Tensor,
    batch_size: i64,
) -> ShardedIter2 {
    shared_rows(site, xs, ys, batch_size)
}

/// `Iter2::new(..)` in what a marked loop takes its items from: whole batches, in one order on all ranks.
#[must_use]
pub fn whole_iter2<C>(
    _constructor: C,
    site: &'static str,
    xs: &Tensor,
    ys: &Tensor,
    batch_size: i64,
) -> ShardedIter2 {
    ShardedIter2::whole(xs, ys, batch_size, current_share(), whole_order(site))
}

/// `Iter2::f_new(..)` there.
///
/// # Errors
/// As tch's.
pub fn f_whole_iter2<C>(
    _constructor: C,
    site: &'static str,
    xs: &Tensor,
    ys: &Tensor,
    batch_size: i64,
) -> std::result::Result<ShardedIter2, TchError> {
    ShardedIter2::f_whole(xs, ys, batch_size, current_share(), whole_order(site))
}

/// The order of whole batches; `None` where a single process draws it.
fn whole_order(site: &'static str) -> Option<Order> {
    synchronize();
    match batch_rule() {
        Batch::PerRank => Some(order(site)),
        Batch::Global => None,
    }
}

/// This rank's share of the batches of pairs of rows.
fn shared_rows(site: &'static str, xs: &Tensor, ys: &Tensor, batch_size: i64) -> ShardedIter2 {
    deal_out();
    match batch_rule() {
        Batch::PerRank => ShardedIter2::new(xs, ys, batch_size, current_share(), order(site)),
        Batch::Global => ShardedIter2::split(xs, ys, batch_size, current_share()),
    }
}

/// `Iter2::f_new(..)`.
///
/// # Errors
/// As tch's.
pub fn f_iter2<C>(
    _constructor: C,
    site: &'static str,
    xs: &Tensor,
    ys: &Tensor,
    batch_size: i64,
) -> std::result::Result<ShardedIter2, TchError> {
    deal_out();
    match batch_rule() {
        Batch::PerRank => ShardedIter2::f_new(xs, ys, batch_size, current_share(), order(site)),
        Batch::Global => ShardedIter2::f_split(xs, ys, batch_size, current_share()),
    }
}

/// Where in the program a shared iterator is made.
#[doc(hidden)]
#[macro_export]
macro_rules! __ddp_site {
    () => {
        ::core::concat!(::core::file!(), ":", ::core::line!(), ":", ::core::column!())
    };
}
pub use crate::__ddp_site as site;
