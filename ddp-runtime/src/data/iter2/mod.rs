//! tch's iterator over pairs of tensors, with its batches shared among the ranks.

mod shared_rows;
#[cfg(test)]
mod tests;

use tch::data::Iter2;
use tch::{Device, TchError, Tensor};

use self::shared_rows::{SharedRows, rows};
use super::batches::LastBatch;
use super::global::SplitRows;
use super::{DataError, Order, Share};
use crate::random;
use crate::steps;
use crate::trace;

/// [`tch::data::Iter2`] for data-parallel training: the same constructors and modifiers, and this rank's batches.
///
/// For one rank it *is* tch's iterator: the same batches, the same random numbers, no copy.
///
/// For `W` ranks, with `b` rows to a rank's batch:
///
/// * Order. Without [`shuffle`](Self::shuffle) the rows stay in theirs; with it the order is `randperm` seeded
///   with `seed + epoch` ([`Order`]), the same on all ranks whatever random numbers they have drawn.
/// * Shares. As PyTorch's `DistributedSampler` with `drop_last`: rank `r` takes places `r`, `r + W`, ... of the
///   order. So the ranks' `k`-th batches together are places `[k W b, (k + 1) W b)`: what one process would see
///   as its `k`-th batch of `W b` rows.
/// * Counts. Every rank gets the same number of batches, of the same sizes: `n / (W b)` full ones of `n` rows
///   (rounded down). Nothing is repeated to pad. With
///   [`return_smaller_last_batch`](Self::return_smaller_last_batch) one more follows on *all* ranks if at least
///   `W` rows are left, each rank's of the same size; the fewer than `W` rows that are left then are dropped. An
///   order of another epoch drops other rows.
///
/// # One batch for all ranks
///
/// [`split`](Self::split), which `batch = "global"` means, gives the batches of a single process instead, and each rank its
/// part of every one:
///
/// * Order. [`shuffle`](Self::shuffle) draws from rank 0's default generator, at the moment it is called and as tch does,
///   and all ranks take that order: `seed` and epoch play no part, and what the other ranks have drawn neither. Where rank
///   0 draws what a single process does (no dropout, no noise of a batch's size), the order is that of a single process.
/// * Shares. The rows of a batch fall to the ranks in stretches, rank 0 first; where the ranks do not divide it, the
///   first ones have a row more. Without `shuffle` parts are views of the data, as batches are in tch.
/// * Counts. As many batches as a single process has, on every rank. A batch of fewer rows than ranks is refused, be it
///   the last one, with the first batch.
/// * Weights. Unequal parts count by their rows, so that a loss that is a mean over rows gives the gradient of the whole
///   batch. The weight belongs to the batch drawn last: step on it before the next is drawn. Batches drawn ahead are
///   refused at the next backward where their parts are unequal, except in a look ahead by one (`peekable`).
///
/// A loss that is a *sum* over rows comes out too small by the number of ranks, as the ranks' gradients are averaged, unless
/// [`Loss::Sum`](crate::Loss::Sum) says that it is one. A mean with weights of its
/// own (`(w * e).sum() / w.sum()`) divides by the rank's sum of weights, which is that of the batch only on average.
///
/// # Of both
///
/// Modifiers can be called in any order. Rows are gathered a batch at a time, where the data lies; only the batch
/// moves to [`to_device`](Self::to_device), like tch to the CPU if that was not called. Unless split, the batches are
/// copies, where those of tch without `shuffle` are views of the data.
///
/// ```no_run
/// use ddp_runtime::data::{Order, Share, ShardedIter2};
/// use tch::{Device, Tensor, kind};
///
/// let (xs, ys) = (Tensor::randn([1000, 8], kind::FLOAT_CPU), Tensor::zeros([1000], kind::INT64_CPU));
/// let order = Order { seed: 7, epoch: 0 };
/// for (x, y) in ShardedIter2::new(&xs, &ys, 64, Share::new(0, 2)?, order).shuffle() {
///     assert_eq!((x.size(), y.size()), (vec![64, 8], vec![64]));
/// }
/// # Ok::<(), ddp_runtime::data::ShareError>(())
/// ```
#[derive(Debug)]
pub struct ShardedIter2(Source);

#[derive(Debug)]
enum Source {
    /// One rank: tch's own, and how many batches it has left, which it does not tell.
    Plain(Iter2, Left),
    /// Several ranks, each with batches of its own.
    Shared(SharedRows),
    /// Several ranks, which share each batch.
    Split(SplitRows),
}

/// The batches that tch's iterator has left.
#[derive(Clone, Copy, Debug)]
struct Left {
    rows: i64,
    batch_size: i64,
    smaller_last: bool,
    given: i64,
}

impl Left {
    fn new(rows: i64, batch_size: i64) -> Self {
        Self { rows, batch_size, smaller_last: false, given: 0 }
    }

    fn count(self) -> usize {
        if self.batch_size <= 0 {
            return 0;
        }
        let full = self.rows / self.batch_size;
        let last = i64::from(self.smaller_last && self.rows % self.batch_size > 0);
        usize::try_from(full + last - self.given).unwrap_or(0)
    }
}

impl ShardedIter2 {
    /// An iterator over this rank's batches of the rows of `xs` and `ys`, `batch_size` to a rank's batch.
    ///
    /// # Errors
    ///
    /// [`TchError::Shape`] if the tensors differ in their first dimension, or one has none.
    pub fn f_new(
        xs: &Tensor,
        ys: &Tensor,
        batch_size: i64,
        share: Share,
        order: Order,
    ) -> Result<Self, TchError> {
        let plain = checked(xs, ys, batch_size)?;
        Ok(Self(if share.is_alone() {
            Source::Plain(plain, Left::new(rows(xs), batch_size))
        } else {
            Source::Shared(SharedRows::new(xs, ys, batch_size, share, order))
        }))
    }

    /// As [`f_new`](Self::f_new).
    ///
    /// # Panics
    ///
    /// Where `f_new` returns an error, as [`Iter2::new`] does.
    #[track_caller]
    pub fn new(xs: &Tensor, ys: &Tensor, batch_size: i64, share: Share, order: Order) -> Self {
        match Self::f_new(xs, ys, batch_size, share, order) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// An iterator over whole batches, the same ones on every rank of `share`, for a loop that shares them by itself, as those
    /// of a `zip`. The order of [`shuffle`](Self::shuffle) is that of `order`; without one, rank 0 draws it for all ranks, as
    /// in [`split`](Self::split).
    ///
    /// # Errors
    ///
    /// As [`f_new`](Self::f_new).
    pub fn f_whole(
        xs: &Tensor,
        ys: &Tensor,
        batch_size: i64,
        share: Share,
        order: Option<Order>,
    ) -> Result<Self, TchError> {
        let plain = checked(xs, ys, batch_size)?;
        let all = Share::ALONE;
        Ok(Self(match order {
            _ if share.is_alone() => Source::Plain(plain, Left::new(rows(xs), batch_size)),
            Some(order) => Source::Shared(SharedRows::new(xs, ys, batch_size, all, order)),
            None => Source::Split(SplitRows::new(xs, ys, batch_size, all, random::joint_order)),
        }))
    }

    /// As [`f_whole`](Self::f_whole).
    ///
    /// # Panics
    ///
    /// Where `f_whole` returns an error, as [`Iter2::new`] does.
    #[track_caller]
    pub fn whole(
        xs: &Tensor,
        ys: &Tensor,
        batch_size: i64,
        share: Share,
        order: Option<Order>,
    ) -> Self {
        match Self::f_whole(xs, ys, batch_size, share, order) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// An iterator over this rank's parts of the batches that a single process would have, `batch_size` rows to the batch
    /// that all ranks share.
    ///
    /// # Errors
    ///
    /// As [`f_new`](Self::f_new).
    pub fn f_split(
        xs: &Tensor,
        ys: &Tensor,
        batch_size: i64,
        share: Share,
    ) -> Result<Self, TchError> {
        let plain = checked(xs, ys, batch_size)?;
        Ok(Self(if share.is_alone() {
            Source::Plain(plain, Left::new(rows(xs), batch_size))
        } else {
            Source::Split(SplitRows::new(xs, ys, batch_size, share, random::joint_order))
        }))
    }

    /// As [`f_split`](Self::f_split).
    ///
    /// # Panics
    ///
    /// Where `f_split` returns an error, as [`Iter2::new`] does.
    #[track_caller]
    pub fn split(xs: &Tensor, ys: &Tensor, batch_size: i64, share: Share) -> Self {
        match Self::f_split(xs, ys, batch_size, share) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// Shuffles the rows: on several ranks by seed and epoch, on one rank as [`Iter2::shuffle`] does.
    ///
    /// On several ranks a second call changes nothing, as the order is a function of seed and epoch. Where batches are
    /// [split](Self::split), all ranks must call it, and each call shuffles anew; a failure to agree on the order is
    /// returned with the next batch.
    pub fn shuffle(&mut self) -> &mut Self {
        match &mut self.0 {
            Source::Plain(iter, _) => {
                iter.shuffle();
            }
            Source::Shared(rows) => {
                rows.shuffled = Some(rows.order);
                rows.index = None;
            }
            Source::Split(rows) => rows.shuffle(),
        }
        self
    }

    /// Moves each batch to `device`.
    // The name is tch's.
    #[allow(clippy::wrong_self_convention)]
    pub fn to_device(&mut self, device: Device) -> &mut Self {
        match &mut self.0 {
            Source::Plain(iter, _) => {
                iter.to_device(device);
            }
            Source::Shared(rows) => rows.device = device,
            Source::Split(rows) => rows.set_device(device),
        }
        self
    }

    /// Also gives a smaller last batch: on several ranks to all of them, or to none; [split](Self::split) among them, it
    /// is the one of a single process.
    pub fn return_smaller_last_batch(&mut self) -> &mut Self {
        match &mut self.0 {
            Source::Plain(iter, left) => {
                left.smaller_last = true;
                iter.return_smaller_last_batch();
            }
            Source::Shared(rows) => rows.last_batch = LastBatch::Smaller,
            Source::Split(rows) => rows.return_smaller_last_batch(),
        }
        self
    }

    /// The next batch, or `None` after the last: [`next`](Iterator::next) for who handles errors.
    ///
    /// # Errors
    ///
    /// [`DataError`]: the rows give one process a batch but not each rank, a shared batch has not a row for each rank, the
    /// ranks could not agree on an order, or libtorch failed.
    ///
    /// # Panics
    ///
    /// On one rank where tch's iterator does.
    pub fn f_next(&mut self) -> Result<Option<(Tensor, Tensor)>, DataError> {
        let batch = match &mut self.0 {
            Source::Plain(iter, left) => {
                left.given += 1;
                return Ok(iter.next());
            }
            Source::Shared(rows) => rows.next(),
            Source::Split(rows) => rows.next(),
        }?;
        steps::drawn(batch.is_some());
        Ok(batch)
    }
}

/// tch's iterator, with tch's own check, and its own words, also where it is not used.
fn checked(xs: &Tensor, ys: &Tensor, batch_size: i64) -> Result<Iter2, TchError> {
    if xs.dim() == 0 || ys.dim() == 0 {
        return Err(TchError::Shape(format!("an input without a first dimension {xs:?} {ys:?}")));
    }
    Iter2::f_new(xs, ys, batch_size)
}

impl Iterator for ShardedIter2 {
    type Item = (Tensor, Tensor);

    /// # Panics
    ///
    /// Where [`f_next`](ShardedIter2::f_next) returns an error: an iterator cannot return it, and to end early
    /// would be to train on nothing.
    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        let _span = trace::span(trace::Kind::Data);
        match self.f_next() {
            Ok(batch) => batch,
            Err(error) => panic!("{error}"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Source::Plain(_, left) => (left.count(), Some(left.count())),
            Source::Shared(rows) => rows.size_hint(),
            Source::Split(rows) => rows.size_hint(),
        }
    }

    /// Gathers nothing for the batches that are left out, on several ranks.
    ///
    /// # Panics
    ///
    /// As [`next`](Iterator::next).
    #[track_caller]
    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        let count = i64::try_from(n).unwrap_or(i64::MAX);
        match &mut self.0 {
            Source::Plain(iter, left) => {
                left.given = left.given.saturating_add(count).saturating_add(1);
                return iter.nth(n);
            }
            Source::Shared(rows) => rows.next_batch = rows.next_batch.saturating_add(count),
            Source::Split(rows) => rows.leave_out(count),
        }
        self.next()
    }

    /// Gathers nothing, where batches are [split](ShardedIter2::split): to count them is not to draw them.
    ///
    /// # Panics
    ///
    /// As [`next`](Iterator::next).
    #[track_caller]
    fn count(self) -> usize {
        match self.0 {
            Source::Plain(iter, _) => iter.count(),
            Source::Shared(_) => self.fold(0, |count, _| count + 1),
            Source::Split(mut rows) => match rows.left() {
                Ok(left) => left,
                Err(error) => panic!("{error}"),
            },
        }
    }
}
