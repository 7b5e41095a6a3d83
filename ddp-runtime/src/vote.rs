//! Decisions that all ranks take together, and values they share: one small message each, no tensors on the data plane.
//!
//! A condition that a rank computes from its own data (a clock, its loss, the length of its episode) may not decide alone how
//! many steps it takes, since the others would wait for it. These functions make one decision of all ranks' conditions. With
//! one rank they return what they are given.
//!
//! Under `uneven = "join"` a rank that has returned, or waits in a save, has no say: the others decide among themselves, and a
//! mean is that of their values.
//!
//! They return plain values, to stand in an `if`; when the other ranks cannot be asked, the process ends with the error.
use std::sync::atomic::{AtomicUsize, Ordering};

use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::comm::ReduceOp;
use crate::control::Operation;
use crate::error::Result;
use crate::scope::end_process;
use crate::session::{self, Session};
use crate::signal;

fn or_end<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| end_process(&error))
}

/// Every rank's word, in the order of the ranks. One that stands aside (`uneven = "join"`) has none.
fn ask(session: &Session, word: i64) -> Result<Vec<i64>> {
    session.exchange(Operation::Vote, word)
}

fn votes(cond: bool) -> Vec<bool> {
    match session::current() {
        None => vec![cond],
        Some(session) => {
            or_end(ask(&session, i64::from(cond))).into_iter().map(|word| word != 0).collect()
        }
    }
}

/// Whether the condition holds on every rank.
///
/// All ranks must call it; all get the same answer.
#[must_use]
pub fn agree(cond: bool) -> bool {
    votes(cond).into_iter().all(|vote| vote)
}

/// Whether any rank wants to stop: `if should_stop(started.elapsed() > limit) { break }`.
///
/// A rank that a scheduler has sent SIGTERM or SIGUSR1 wants to, whatever its condition; so `should_stop(false)` asks for
/// nothing else. In a scope of more than one rank the first call begins to listen to these signals; in a single process
/// they are listened to once [`stop_on_signals`](crate::stop_on_signals) was called.
///
/// All ranks must call it; all get the same answer.
#[must_use]
pub fn should_stop(cond: bool) -> bool {
    or_end(signal::listen_in_scope());
    votes(cond || signal::stop_requested()).into_iter().any(|vote| vote)
}

/// Whether any rank must skip this batch, so that all do: `if skip_if(!loss_is_finite) { continue }`, before the backward.
///
/// All ranks must call it; all get the same answer.
#[must_use]
pub fn skip_if(cond: bool) -> bool {
    votes(cond).into_iter().any(|vote| vote)
}

/// A value whose mean and sum over the ranks can be taken.
pub trait Shared {
    /// The result: a number for a number, a tensor for a tensor.
    type Output;
    /// The sum over all ranks.
    #[doc(hidden)]
    fn summed(self) -> Self::Output;
    /// The mean over all ranks.
    #[doc(hidden)]
    fn averaged(self) -> Self::Output;
}

/// The ranks' numbers, added in the order of the ranks, so that all have the same bits.
fn total(value: f64) -> (f64, f64) {
    match session::current() {
        None => (value, 1.0),
        Some(session) => {
            let words = or_end(ask(&session, value.to_bits().cast_signed()));
            let sum = words.iter().map(|word| f64::from_bits(word.cast_unsigned())).sum();
            (sum, words.len() as f64)
        }
    }
}

/// The ranks' tensors, combined.
fn combined(value: &Tensor, op: ReduceOp) -> Tensor {
    let value = value.detach().copy();
    if let Some(session) = session::current() {
        or_end(crate::collective::all_reduce(&session, &value, op));
    }
    value
}

impl Shared for f64 {
    type Output = f64;
    fn summed(self) -> f64 {
        total(self).0
    }
    fn averaged(self) -> f64 {
        let (sum, ranks) = total(self);
        sum / ranks
    }
}

impl Shared for f32 {
    type Output = f64;
    fn summed(self) -> f64 {
        f64::from(self).summed()
    }
    fn averaged(self) -> f64 {
        f64::from(self).averaged()
    }
}

/// Elementwise. Integers are averaged in f64, whatever their dtype.
impl Shared for &Tensor {
    type Output = Tensor;
    fn summed(self) -> Tensor {
        combined(self, ReduceOp::Sum)
    }
    fn averaged(self) -> Tensor {
        let value = if self.is_floating_point() {
            self.shallow_clone()
        } else {
            self.to_kind(Kind::Double)
        };
        combined(&value, ReduceOp::Avg)
    }
}

/// The mean of every rank's value: of the losses of their batches, for one figure to print.
///
/// All ranks must call it; all get the same result. A mean of means is that of all samples only where the parts are of one
/// size; else [`sum`] both numerator and count.
pub fn mean<T: Shared>(value: T) -> T::Output {
    value.averaged()
}

/// The sum of every rank's value.
///
/// All ranks must call it; all get the same result.
pub fn sum<T: Shared>(value: T) -> T::Output {
    value.summed()
}

/// Registers a store that the attribute cannot see (a field, a part of a model) and makes it equal on all ranks, with its
/// buffers.
pub fn sync(store: &VarStore) {
    if let Some(session) = session::current() {
        session.register(store);
        or_end(session.synchronize());
    }
}

/// How deep this process is in sections that only one rank runs.
static ALONE: AtomicUsize = AtomicUsize::new(0);

/// Whether this is inside a section that only one rank runs, where no collective can work.
pub(crate) fn is_alone() -> bool {
    ALONE.load(Ordering::Relaxed) > 0
}

struct AloneSection;

impl AloneSection {
    fn enter() -> Self {
        ALONE.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for AloneSection {
    fn drop(&mut self) {
        ALONE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `body` on the main rank only, and does not wait for it: for files, tables, images.
///
/// A collective inside `body` is an error at once, through whatever function it is reached: the other ranks are not there.
pub fn main_only<T>(body: impl FnOnce() -> T) -> Option<T> {
    match session::current() {
        None => Some(body()),
        Some(session) if session.topology().is_main() => {
            let _section = AloneSection::enter();
            Some(body())
        }
        Some(_) => None,
    }
}

/// [`main_only`] under the name that PyTorch's users know the main rank by.
pub fn rank0<T>(body: impl FnOnce() -> T) -> Option<T> {
    main_only(body)
}

/// Runs `body` on every rank, on the first of each host before the others: for downloads, conversions, folders. What the
/// first one made is there for the others.
///
/// The others wait as long as the first lives, without a limit. A collective inside `body` is an error.
pub fn main_first<T>(body: impl FnOnce() -> T) -> T {
    let Some(session) = session::current() else { return body() };
    let alone = || {
        let _section = AloneSection::enter();
        body()
    };
    if session.topology().is_local_main() {
        let value = alone();
        or_end(session.pass_first());
        value
    } else {
        or_end(session.pass_first());
        alone()
    }
}
