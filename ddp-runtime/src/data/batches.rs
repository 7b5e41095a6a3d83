//! How a rank's samples fall into batches: as many on every rank, and as large, and which samples each holds.

use tch::{Device, Tensor};

use super::{DataError, DistributedSampler, Order, Share};

/// What becomes of the samples that do not fill a batch on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastBatch {
    /// They are left out.
    Dropped,
    /// Every rank gets a smaller batch, all of one size; fewer samples than there are ranks are left out.
    Smaller,
}

/// The sizes of one pass' batches, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchPlan {
    batch_size: i64,
    /// Batches of `batch_size`.
    full: i64,
    /// Samples in the batch after those; 0 if there is none.
    last: i64,
}

impl BatchPlan {
    /// Plans one pass over `samples` with `batch_size` of them to a rank's batch.
    ///
    /// A batch size below 1 gives no batches, as it does in tch.
    ///
    /// # Errors
    ///
    /// [`DataError::NotABatchEach`] if one process alone would get a batch, but these ranks get none.
    pub(super) fn new(
        samples: i64,
        batch_size: i64,
        share: Share,
        last_batch: LastBatch,
    ) -> Result<Self, DataError> {
        if batch_size < 1 {
            return Ok(Self { batch_size, full: 0, last: 0 });
        }
        let world_size = share.world_size();
        let each = samples / world_size as i64;
        let full = each / batch_size;
        let (last, enough_alone) = match last_batch {
            LastBatch::Dropped => (0, batch_size),
            LastBatch::Smaller => (each % batch_size, 1),
        };
        if full == 0 && last == 0 && samples >= enough_alone {
            return Err(DataError::NotABatchEach { samples, batch_size, world_size });
        }
        Ok(Self { batch_size, full, last })
    }

    /// How many batches each rank gets.
    pub(super) fn count(self) -> i64 {
        self.full + i64::from(self.last > 0)
    }

    /// Where batch `number` begins among the rank's samples, and how many it has; `None` after the last batch.
    pub(super) fn batch(self, number: i64) -> Option<(i64, i64)> {
        let size = if number < self.full { self.batch_size } else { self.last };
        (number < self.count()).then(|| (number * self.batch_size, size))
    }
}

/// The numbers of this rank's samples as an index on `device`: in their own order, or in that of `shuffled`.
///
/// Only whole rounds count (`drop_last`), so that the k-th batches of all ranks together are the k-th stretch of
/// the common order.
pub(super) fn rank_index(
    samples: i64,
    share: Share,
    shuffled: Option<Order>,
    device: Device,
) -> Result<Tensor, DataError> {
    let samples = usize::try_from(samples).unwrap_or(0);
    let Order { seed, epoch } = shuffled.unwrap_or_default();
    let mut sampler = DistributedSampler::new(samples, share)
        .shuffle(shuffled.is_some())
        .seed(seed)
        .drop_last(true);
    sampler.set_epoch(epoch);
    Ok(Tensor::f_from_slice(&sampler.indices()?)?.f_to_device(device)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BatchPlan, LastBatch};
    use crate::data::{DataError, Share};

    fn plan(
        samples: i64,
        batch_size: i64,
        world: usize,
        last: LastBatch,
    ) -> Result<BatchPlan, DataError> {
        BatchPlan::new(samples, batch_size, Share::new(0, world).unwrap(), last)
    }

    #[test]
    fn only_full_batches_or_a_smaller_one_for_all() {
        let dropped = plan(23, 4, 2, LastBatch::Dropped).unwrap();
        assert_eq!((dropped.count(), dropped.batch(1), dropped.batch(2)), (2, Some((4, 4)), None));
        let smaller = plan(23, 4, 2, LastBatch::Smaller).unwrap();
        assert_eq!((smaller.count(), smaller.batch(2), smaller.batch(3)), (3, Some((8, 3)), None));
        let even = plan(16, 4, 2, LastBatch::Smaller).unwrap();
        assert_eq!((even.count(), even.batch(2)), (2, None));
    }

    #[test]
    fn no_batch_where_one_process_has_none_either() {
        assert_eq!(plan(3, 4, 2, LastBatch::Dropped).unwrap().count(), 0);
        assert_eq!(plan(0, 4, 2, LastBatch::Smaller).unwrap().count(), 0);
        assert_eq!(plan(9, 0, 2, LastBatch::Smaller).unwrap().count(), 0);
        assert_eq!(plan(9, -1, 2, LastBatch::Dropped).unwrap().count(), 0);
    }

    #[test]
    fn training_on_nothing_is_refused() {
        let error = plan(7, 4, 2, LastBatch::Dropped).unwrap_err();
        assert!(matches!(
            error,
            DataError::NotABatchEach { samples: 7, batch_size: 4, world_size: 2 }
        ));
        assert!(plan(7, 4, 2, LastBatch::Smaller).is_ok());
        assert!(plan(2, 4, 3, LastBatch::Smaller).is_err());
    }

    proptest! {
        #[test]
        fn a_pass_wastes_less_than_its_rule_says(samples in 0i64..500, batch in 1i64..20, world in 1usize..9) {
            let ranks = world as i64;
            for last in [LastBatch::Dropped, LastBatch::Smaller] {
                let Ok(plan) = plan(samples, batch, world, last) else { continue };
                let sizes: Vec<_> = (0..plan.count()).map(|k| plan.batch(k).unwrap()).collect();
                let mut start = 0;
                for &(at, size) in &sizes {
                    prop_assert_eq!(at, start);
                    prop_assert!((1..=batch).contains(&size));
                    start += size;
                }
                let wasted = samples - start * ranks;
                let limit = if last == LastBatch::Smaller { ranks } else { ranks * batch };
                prop_assert!((0..limit).contains(&wasted));
            }
        }
    }
}
