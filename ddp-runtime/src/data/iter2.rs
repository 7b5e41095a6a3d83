//! tch's iterator over pairs of tensors, with its batches shared among the ranks.

use tch::data::Iter2;
use tch::{Device, TchError, Tensor};

use super::batches::{BatchPlan, LastBatch, rank_index};
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

/// The rows, how they are to be given out, and how far that has come.
#[derive(Debug)]
struct SharedRows {
    xs: Tensor,
    ys: Tensor,
    batch_size: i64,
    share: Share,
    /// The order that `shuffle` would give.
    order: Order,
    /// The order in force; `None` is that of the rows.
    shuffled: Option<Order>,
    last_batch: LastBatch,
    device: Device,
    next_batch: i64,
    /// This rank's rows, on the devices of `xs` and `ys`; worked out with the first batch.
    index: Option<(Tensor, Tensor)>,
}

impl SharedRows {
    fn new(xs: &Tensor, ys: &Tensor, batch_size: i64, share: Share, order: Order) -> Self {
        Self {
            xs: xs.shallow_clone(),
            ys: ys.shallow_clone(),
            batch_size,
            share,
            order,
            shuffled: None,
            last_batch: LastBatch::Dropped,
            device: Device::Cpu,
            next_batch: 0,
            index: None,
        }
    }

    fn plan(&self) -> Result<BatchPlan, DataError> {
        BatchPlan::new(self.rows(), self.batch_size, self.share, self.last_batch)
    }

    fn rows(&self) -> i64 {
        self.xs.size().first().copied().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Option<(Tensor, Tensor)>, DataError> {
        let Some((start, size)) = self.plan()?.batch(self.next_batch) else { return Ok(None) };
        let (xs_index, ys_index) = match self.index.take() {
            Some(index) => index,
            None => self.work_out_index()?,
        };
        let x = gather(&self.xs, &xs_index.f_narrow(0, start, size)?, self.device)?;
        let y = gather(&self.ys, &ys_index.f_narrow(0, start, size)?, self.device)?;
        self.index = Some((xs_index, ys_index));
        self.next_batch += 1;
        Ok(Some((x, y)))
    }

    fn work_out_index(&self) -> Result<(Tensor, Tensor), DataError> {
        let xs_index = rank_index(self.rows(), self.share, self.shuffled, self.xs.device())?;
        // The same tensor where both lie on one device.
        let ys_index = xs_index.f_to_device(self.ys.device())?;
        Ok((xs_index, ys_index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A plan that fails gives no batch.
        let count = self.plan().map_or(0, BatchPlan::count);
        let left = usize::try_from(count - self.next_batch).unwrap_or(0);
        (left, Some(left))
    }
}

fn rows(data: &Tensor) -> i64 {
    data.size().first().copied().unwrap_or(0)
}

/// Rows `index` of `data`, on `device`.
fn gather(data: &Tensor, index: &Tensor, device: Device) -> Result<Tensor, TchError> {
    data.f_index_select(0, index)?.f_to_device(device)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::data::Iter2;
    use tch::{Device, Kind, TchError, Tensor, kind};

    use super::ShardedIter2;
    use crate::bridge;
    use crate::data::{DataError, Order, Share};

    const ORDER: Order = Order { seed: 11, epoch: 3 };

    /// Rows that carry their own number, so that a batch tells where it comes from: `n` by 2, and `n`.
    fn numbered(n: i64) -> (Tensor, Tensor) {
        let ys = Tensor::arange(n, kind::INT64_CPU);
        let xs = ys.to_kind(Kind::Float).unsqueeze(1).repeat([1, 2]);
        (xs, ys)
    }

    fn iter(n: i64, batch: i64, rank: usize, world: usize) -> ShardedIter2 {
        let (xs, ys) = numbered(n);
        ShardedIter2::new(&xs, &ys, batch, Share::new(rank, world).unwrap(), ORDER)
    }

    /// The row numbers of each batch, after a check that both tensors of the pair have the same.
    fn batches(iter: &mut ShardedIter2) -> Vec<Vec<i64>> {
        iter.map(|(x, y)| {
            let rows = Vec::<i64>::try_from(&y).unwrap();
            assert_eq!(x.size(), [rows.len() as i64, 2]);
            assert_eq!(Vec::<i64>::try_from(x.select(1, 1).to_kind(Kind::Int64)).unwrap(), rows);
            rows
        })
        .collect()
    }

    type Modify = fn(&mut ShardedIter2) -> &mut ShardedIter2;

    fn all_ranks(n: i64, batch: i64, world: usize, modify: Modify) -> Vec<Vec<Vec<i64>>> {
        (0..world).map(|rank| batches(modify(&mut iter(n, batch, rank, world)))).collect()
    }

    /// The k-th batches of all ranks, dealt back in turn: a stretch of the common order.
    fn joint(ranks: &[Vec<Vec<i64>>], k: usize) -> Vec<i64> {
        (0..ranks[0][k].len()).flat_map(|row| ranks.iter().map(move |own| own[k][row])).collect()
    }

    #[test]
    fn without_shuffle_the_joint_batches_are_the_rows_in_order() {
        let ranks = all_ranks(14, 3, 2, |iter| iter);
        assert_eq!(ranks[0], [[0, 2, 4], [6, 8, 10]]);
        assert_eq!(ranks[1], [[1, 3, 5], [7, 9, 11]]);
    }

    #[test]
    fn p02_a_smaller_last_batch_reaches_all_ranks_or_none() {
        let ranks = all_ranks(17, 3, 2, ShardedIter2::return_smaller_last_batch);
        assert_eq!((&ranks[0][2], &ranks[1][2]), (&vec![12, 14], &vec![13, 15]));
        let ranks = all_ranks(13, 3, 2, ShardedIter2::return_smaller_last_batch);
        assert_eq!((ranks[0].len(), ranks[1].len()), (2, 2));
    }

    #[test]
    fn modifiers_can_come_in_any_order() {
        let one = all_ranks(17, 3, 2, |iter| {
            iter.shuffle().to_device(Device::Cpu).return_smaller_last_batch()
        });
        let other = all_ranks(17, 3, 2, |iter| {
            iter.return_smaller_last_batch().to_device(Device::Cpu).shuffle().shuffle()
        });
        assert_eq!(one, other);
    }

    #[test]
    fn the_order_is_that_of_the_epoch_whatever_was_drawn_before() {
        let shuffled = |epoch| {
            let (xs, ys) = numbered(40);
            let order = Order { seed: 11, epoch };
            let share = Share::new(1, 2).unwrap();
            batches(ShardedIter2::new(&xs, &ys, 5, share, order).shuffle())
        };
        let first = shuffled(0);
        let _drawn = Tensor::rand([7], kind::FLOAT_CPU);
        assert_eq!(first, shuffled(0));
        assert_ne!(first, shuffled(1));
    }

    #[test]
    fn one_rank_is_tch_number_for_number() {
        let (xs, ys) = numbered(23);
        for smaller in [false, true] {
            let mut plain = Iter2::new(&xs, &ys, 4);
            let mut ours = ShardedIter2::new(&xs, &ys, 4, Share::ALONE, ORDER);
            if smaller {
                plain.return_smaller_last_batch();
                ours.return_smaller_last_batch();
            }
            let plain: Vec<_> = plain.to_device(Device::Cpu).map(|(_, y)| y).collect();
            let ours: Vec<_> = ours.to_device(Device::Cpu).map(|(_, y)| y).collect();
            assert_eq!(plain, ours);
        }
    }

    #[test]
    fn one_rank_draws_from_the_global_generator_as_tch_does() {
        // Other tests draw from the same generator; the draws of one attempt can be pulled apart by them.
        let same = (0..20).any(|seed| {
            let (xs, ys) = numbered(30);
            tch::manual_seed(seed);
            let plain: Vec<_> = Iter2::new(&xs, &ys, 4).shuffle().map(|(_, y)| y).collect();
            tch::manual_seed(seed);
            let mut ours = ShardedIter2::new(&xs, &ys, 4, Share::ALONE, ORDER);
            plain == ours.shuffle().map(|(_, y)| y).collect::<Vec<_>>()
        });
        assert!(same);
    }

    #[test]
    fn the_shape_error_is_that_of_tch() {
        let (xs, ys) =
            (Tensor::zeros([3, 2], kind::FLOAT_CPU), Tensor::zeros([4], kind::FLOAT_CPU));
        let theirs = Iter2::f_new(&xs, &ys, 2).unwrap_err().to_string();
        for share in [Share::ALONE, Share::new(0, 2).unwrap()] {
            let ours = ShardedIter2::f_new(&xs, &ys, 2, share, ORDER).unwrap_err();
            assert_eq!(ours.to_string(), theirs);
            let scalar = Tensor::from(1.0);
            let error = ShardedIter2::f_new(&scalar, &ys, 2, share, ORDER).unwrap_err();
            assert!(matches!(error, TchError::Shape(_)));
        }
    }

    #[test]
    fn whole_batches_are_the_same_on_every_rank_in_the_order_of_the_epoch() {
        let (xs, ys) = numbered(23);
        let of = |rank, order| {
            let share = Share::new(rank, 2).unwrap();
            let mut iter = ShardedIter2::whole(&xs, &ys, 4, share, order);
            batches(iter.shuffle().return_smaller_last_batch())
        };
        let (first, other) = (of(0, Some(ORDER)), of(1, Some(ORDER)));
        assert_eq!(first, other);
        let order = bridge::randperm(ORDER.seed + ORDER.epoch, 23).unwrap();
        assert_eq!((first.concat(), first.len(), first[5].len()), (order, 6, 3));
        // Without a group this rank draws alone, as tch does.
        let mut drawn = of(0, None).concat();
        drawn.sort_unstable();
        assert_eq!(drawn, (0..23).collect::<Vec<_>>());
    }

    #[test]
    fn training_on_nothing_is_an_error() {
        let error = iter(7, 4, 0, 2).f_next().unwrap_err();
        assert!(matches!(error, DataError::NotABatchEach { samples: 7, .. }));
        assert!(iter(3, 4, 0, 2).f_next().unwrap().is_none());
        assert!(iter(0, 4, 0, 2).f_next().unwrap().is_none());
        assert!(iter(7, 4, 0, 2).return_smaller_last_batch().f_next().unwrap().is_some());
    }

    #[test]
    #[should_panic(expected = "not enough for a batch of 4 on each of 2 ranks")]
    fn a_loop_over_nothing_panics() {
        for _batch in iter(7, 4, 1, 2) {}
    }

    #[test]
    fn batches_are_contiguous_copies_of_any_kind_of_data() {
        let columns = Tensor::arange(24, kind::INT64_CPU).view([3, 8]).tr();
        let share = Share::new(1, 2).unwrap();
        let mut iter = ShardedIter2::new(&columns, &columns, 2, share, ORDER);
        let (x, _) = iter.next().unwrap();
        assert!(x.is_contiguous());
        assert_eq!(Vec::<i64>::try_from(x.view(-1)).unwrap(), [1, 9, 17, 3, 11, 19]);
        let _ = x.shallow_clone().fill_(0);
        assert_eq!(columns.int64_value(&[1, 0]), 1);
    }

    #[test]
    fn leaving_batches_out_is_drawing_and_dropping_them() {
        let (xs, ys) = numbered(23);
        let share = |rank| Share::new(rank, 2).unwrap();
        let rows =
            |batch: Option<(Tensor, Tensor)>| batch.map(|(_, y)| Vec::<i64>::try_from(y).unwrap());
        for left_out in 0..5 {
            let shared = || ShardedIter2::new(&xs, &ys, 3, share(1), ORDER);
            let drawn = batches(shared().shuffle());
            let found = rows(shared().shuffle().nth(left_out));
            assert_eq!(found.as_ref(), drawn.get(left_out));
            let mut iter = shared();
            assert_eq!(rows(iter.shuffle().nth(left_out)).is_some(), left_out < 3);
            assert_eq!(iter.size_hint().0, 3_usize.saturating_sub(left_out + 1));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn joint_batches_are_stretches_of_the_permutation(n in 0i64..120, batch in 1i64..9, world in 2usize..6) {
            let order = bridge::randperm(ORDER.seed + ORDER.epoch, n).unwrap();
            let ranks = world as i64;
            prop_assume!(n / ranks > 0);
            let got = all_ranks(n, batch, world, |iter| iter.shuffle().return_smaller_last_batch());
            let mut seen = Vec::new();
            for k in 0..got[0].len() {
                for own in &got {
                    prop_assert_eq!(own.len(), got[0].len());
                    prop_assert_eq!(own[k].len(), got[0][k].len());
                }
                seen.extend(joint(&got, k));
            }
            prop_assert_eq!(&seen[..], &order[..(n / ranks * ranks) as usize]);
        }

        #[test]
        fn the_size_hint_is_the_count(n in 0i64..120, batch in 1i64..9, world in 2usize..6, taken in 0usize..4) {
            prop_assume!(n / (world as i64) >= batch);
            let mut iter = iter(n, batch, world - 1, world);
            let taken = iter.by_ref().take(taken).count();
            let (low, high) = iter.size_hint();
            prop_assert_eq!(Some(low), high);
            prop_assert_eq!(iter.count(), low);
            prop_assert_eq!(low + taken, (n / (world as i64) / batch) as usize);
        }
    }
}
