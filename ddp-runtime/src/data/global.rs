//! One batch for all ranks (`batch = "global"`): which batches a single process would have, and each rank's part of them.

use tch::{Device, TchError, Tensor};

use super::batches::LastBatch;
use super::part::Part;
use super::weight::Holder;
use super::{DataError, Share};

/// How the ranks come to one random order of `n` places: each call gives all of them the same.
pub(super) type Draw = fn(n: i64, device: Device) -> crate::Result<Tensor>;

/// The batches of a single process, and how they are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitPlan {
    batch_size: i64,
    /// Batches of `batch_size`.
    full: i64,
    /// Rows in the batch after those; 0 if there is none.
    last: i64,
    share: Share,
}

impl SplitPlan {
    /// Plans one pass over `samples` with `batch_size` of them to the joint batch: the batches that tch cuts. A batch size
    /// below 1 gives none.
    ///
    /// # Errors
    /// [`DataError::FewerRowsThanRanks`] if a batch of the pass, be it the last one, has not a row for each rank: said at the
    /// start of the pass rather than at its end.
    pub(super) fn new(
        samples: i64,
        batch_size: i64,
        share: Share,
        last_batch: LastBatch,
    ) -> Result<Self, DataError> {
        if batch_size < 1 {
            return Ok(Self { batch_size, full: 0, last: 0, share });
        }
        let full = samples / batch_size;
        let last = match last_batch {
            LastBatch::Dropped => 0,
            LastBatch::Smaller => samples % batch_size,
        };
        let smallest =
            [(full, batch_size), (last, last)].into_iter().filter(|(count, _)| *count > 0);
        let smallest = smallest.map(|(_, rows)| rows).min();
        match smallest.filter(|&rows| rows < share.world_size() as i64) {
            Some(rows) => Err(DataError::FewerRowsThanRanks {
                rows,
                samples,
                batch_size,
                world_size: share.world_size(),
            }),
            None => Ok(Self { batch_size, full, last, share }),
        }
    }

    /// How many batches there are, for every rank.
    pub(super) fn count(self) -> i64 {
        self.full + i64::from(self.last > 0)
    }

    /// This rank's part of batch `number`, its rows counted from the beginning of the pass; `None` after the last batch.
    pub(super) fn part(self, number: i64) -> Option<Part> {
        let size = if number < self.full { self.batch_size } else { self.last };
        (number < self.count()).then(|| Part::of(size, self.share).after(number * self.batch_size))
    }
}

/// Pairs of rows, of whose batches this rank takes its parts.
#[derive(Debug)]
pub(super) struct SplitRows {
    xs: Tensor,
    ys: Tensor,
    batch_size: i64,
    share: Share,
    last_batch: LastBatch,
    device: Device,
    draw: Draw,
    /// The common order, on the devices of `xs` and `ys`; `None` is that of the rows.
    order: Option<(Tensor, Tensor)>,
    /// Why the order could not be drawn, until somebody is told.
    failed: Option<DataError>,
    next_batch: i64,
    holder: Holder,
}

impl SplitRows {
    pub(super) fn new(xs: &Tensor, ys: &Tensor, batch_size: i64, share: Share, draw: Draw) -> Self {
        Self {
            xs: xs.shallow_clone(),
            ys: ys.shallow_clone(),
            batch_size,
            share,
            last_batch: LastBatch::Dropped,
            device: Device::Cpu,
            draw,
            order: None,
            failed: None,
            next_batch: 0,
            holder: Holder::new(),
        }
    }

    /// As tch does: now, on the device that batches go to at this moment, and on top of an order that was there.
    pub(super) fn shuffle(&mut self) {
        if self.failed.is_none() {
            match self.shuffled() {
                Ok(order) => self.order = Some(order),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    fn shuffled(&self) -> Result<(Tensor, Tensor), DataError> {
        let drawn = (self.draw)(self.rows(), self.device)?.f_to_device(self.xs.device())?;
        let order = match &self.order {
            Some((before, _)) => before.f_index_select(0, &drawn)?,
            None => drawn,
        };
        let for_ys = order.f_to_device(self.ys.device())?;
        Ok((order, for_ys))
    }

    pub(super) fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    pub(super) fn return_smaller_last_batch(&mut self) {
        self.last_batch = LastBatch::Smaller;
    }

    fn plan(&self) -> Result<SplitPlan, DataError> {
        SplitPlan::new(self.rows(), self.batch_size, self.share, self.last_batch)
    }

    fn rows(&self) -> i64 {
        self.xs.size().first().copied().unwrap_or(0)
    }

    pub(super) fn next(&mut self) -> Result<Option<(Tensor, Tensor)>, DataError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(part) = self.plan()?.part(self.next_batch) else {
            self.holder.release();
            return Ok(None);
        };
        let (xs_order, ys_order) = match &self.order {
            Some((xs_order, ys_order)) => (Some(xs_order), Some(ys_order)),
            None => (None, None),
        };
        let x = rows_of(&self.xs, xs_order, part, self.device)?;
        let y = rows_of(&self.ys, ys_order, part, self.device)?;
        self.holder.hold(part)?;
        self.next_batch += 1;
        Ok(Some((x, y)))
    }

    /// Goes on `count` batches later.
    pub(super) fn leave_out(&mut self, count: i64) {
        self.next_batch = self.next_batch.saturating_add(count);
    }

    /// How many batches are left.
    ///
    /// # Errors
    /// Where [`next`](Self::next) has one.
    pub(super) fn left(&mut self) -> Result<usize, DataError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(usize::try_from(self.plan()?.count() - self.next_batch).unwrap_or(0)),
        }
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        // A plan that fails gives no batch.
        let count = self.plan().map_or(0, SplitPlan::count);
        let left = usize::try_from(count - self.next_batch).unwrap_or(0);
        (left, Some(left))
    }
}

/// The rows of a part, on `device`: views of the data where they lie in a row, as from tch.
fn rows_of(
    data: &Tensor,
    order: Option<&Tensor>,
    part: Part,
    device: Device,
) -> Result<Tensor, TchError> {
    let rows = match order {
        Some(order) => data.f_index_select(0, &order.f_narrow(0, part.start, part.rows)?)?,
        None => data.f_narrow(0, part.start, part.rows)?,
    };
    rows.f_to_device(device)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::{Device, Kind, Tensor, kind};

    use super::{Draw, SplitPlan, SplitRows};
    use crate::data::batches::LastBatch;
    use crate::data::{DataError, Share, weight};

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    /// Backwards: no permutation is less like the order of the rows.
    const REVERSED: Draw = |n, device| Ok(Tensor::arange(n, (Kind::Int64, device)).flip([0]));

    fn rows(n: i64, batch: i64, rank: usize, world: usize) -> SplitRows {
        let ys = Tensor::arange(n, kind::INT64_CPU);
        let xs = ys.to_kind(Kind::Float).unsqueeze(1).repeat([1, 2]);
        SplitRows::new(&xs, &ys, batch, share(rank, world), REVERSED)
    }

    /// The row numbers and the weight of each part, after a check that both tensors of the pair have the same rows.
    fn parts(rows: &mut SplitRows) -> Vec<(Vec<i64>, f64)> {
        std::iter::from_fn(|| rows.next().unwrap())
            .map(|(x, y)| {
                let numbers = Vec::<i64>::try_from(&y).unwrap();
                assert_eq!(
                    Vec::<i64>::try_from(x.select(1, 1).to_kind(Kind::Int64)).unwrap(),
                    numbers
                );
                (numbers, weight::of_step().map_or(f64::NAN, |counts| counts.factor))
            })
            .collect()
    }

    #[test]
    fn the_first_ranks_have_a_row_more() {
        let of = |rank| {
            let mut rows = rows(10, 8, rank, 3);
            rows.return_smaller_last_batch();
            rows.batch_size = 5;
            parts(&mut rows)
        };
        assert_eq!(of(0), [(vec![0, 1], 1.2), (vec![5, 6], 1.2)]);
        assert_eq!(of(1), [(vec![2, 3], 1.2), (vec![7, 8], 1.2)]);
        assert_eq!(of(2), [(vec![4], 0.6), (vec![9], 0.6)]);
    }

    #[test]
    fn a_shuffle_takes_the_common_order_and_a_second_one_comes_on_top() {
        let mut once = rows(6, 4, 1, 2);
        once.shuffle();
        assert_eq!(parts(&mut once), [(vec![3, 2], 1.0)]);
        let mut twice = rows(6, 4, 1, 2);
        twice.shuffle();
        twice.shuffle();
        assert_eq!(parts(&mut twice), [(vec![2, 3], 1.0)]);
    }

    #[test]
    fn p02_a_batch_with_fewer_rows_than_ranks_is_refused_before_the_first_step() {
        let mut ragged = rows(33, 16, 2, 3);
        ragged.return_smaller_last_batch();
        let error = ragged.next().unwrap_err();
        assert!(matches!(
            error,
            DataError::FewerRowsThanRanks { rows: 1, samples: 33, batch_size: 16, world_size: 3 }
        ));
        assert!(ragged.left().is_err());
        // Dropped, it stands in nobody's way.
        assert_eq!(rows(33, 16, 2, 3).left().unwrap(), 2);
        let error = rows(33, 2, 0, 3).next().unwrap_err();
        assert!(matches!(error, DataError::FewerRowsThanRanks { rows: 2, .. }));
        // One process has no batch of that size either.
        assert!(rows(1, 2, 0, 3).next().unwrap().is_none());
        assert!(rows(5, 0, 0, 3).next().unwrap().is_none());
    }

    #[test]
    fn an_order_that_cannot_be_drawn_is_said_with_the_first_batch() {
        let failing: Draw = |_, _| Err(crate::Error::torch("drawing", "no luck"));
        let xs = Tensor::zeros([8, 2], (Kind::Float, Device::Cpu));
        let mut rows = SplitRows::new(&xs, &xs, 4, share(0, 2), failing);
        rows.shuffle();
        assert_eq!(rows.next().unwrap_err().to_string(), "drawing: no luck");
    }

    proptest! {
        /// As tch cuts them, and nothing else; deal them in order, and they are whole again.
        #[test]
        fn parts_cover_the_batches_of_one_process(samples in 0i64..300, batch in 1i64..40, world in 1usize..9, smaller: bool) {
            let last = if smaller { LastBatch::Smaller } else { LastBatch::Dropped };
            let plans: Result<Vec<_>, _> =
                (0..world).map(|rank| SplitPlan::new(samples, batch, share(rank, world), last)).collect();
            let Ok(plans) = plans else {
                let smallest = if smaller && samples % batch > 0 { samples % batch } else { batch };
                prop_assert!(smallest < world as i64);
                return Ok(());
            };
            let ys = Tensor::arange(samples, kind::INT64_CPU);
            let mut plain = tch::data::Iter2::new(&ys, &ys, batch);
            if smaller {
                plain.return_smaller_last_batch();
            }
            let mut count = 0;
            for (k, (rows, _)) in plain.enumerate() {
                let parts: Vec<_> = plans.iter().map(|plan| plan.part(k as i64).unwrap()).collect();
                let dealt: Vec<i64> =
                    parts.iter().flat_map(|part| part.start..part.start + part.rows).collect();
                prop_assert_eq!(&dealt, &Vec::<i64>::try_from(&rows).unwrap());
                let sizes = || parts.iter().map(|part| part.rows);
                prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
                prop_assert!(sizes().all(|rows| rows > 0));
                prop_assert!(parts.iter().all(|part| part.batch == dealt.len() as i64));
                count += 1;
            }
            for plan in plans {
                prop_assert_eq!((plan.count(), plan.part(count)), (count, None));
            }
        }
    }
}
