//! Gives each rank its part of every batch of an iterator.

use std::fmt;
use std::iter::FusedIterator;

use super::part::Part;
use super::shard::Drawing;
use super::weight::Holder;
use super::{BatchSize, DataError, Share, SplitBatch};

/// Gives this rank its part of each of `batches`, which are those of a single process.
///
/// Every rank draws all batches: the source must be the same on all ranks, and what it costs to make a batch is paid by each of
/// them. Of a batch of `n` samples rank `r` of `W` gets a stretch, rank 0 the first one; where `W` does not divide `n`, the
/// first ranks have a sample more. What a batch is, [`SplitBatch`] says.
///
/// Each rank's gradient counts so that the ranks' mean is the gradient of the whole batch, also where parts are unequal; see
/// [`ShardedIter2`](super::ShardedIter2) for what that asks of the loss and of the loop. Ranks whose batches have different
/// sizes are named at the next backward.
///
/// For one rank these are the batches as they are.
///
/// ```
/// use ddp_runtime::data::{Share, split};
/// use tch::Tensor;
///
/// let (images, names) = (Tensor::zeros([5, 28, 28], tch::kind::FLOAT_CPU), ["a", "b", "c", "d", "e"]);
/// let batch = (images, names.to_vec());
/// let mut mine = split([batch], Share::new(1, 2)?);
/// let (images, names) = mine.f_next()?.unwrap();
/// assert_eq!((images.size(), names), (vec![2, 28, 28], vec!["d", "e"]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn split<I: IntoIterator<Item: SplitBatch>>(batches: I, share: Share) -> Split<I::IntoIter> {
    Split { batches: batches.into_iter(), share, ended: false, holder: Holder::new() }
}

/// One rank's parts of batches; see [`split`].
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Split<I> {
    batches: I,
    share: Share,
    /// The source has ended; it is not asked again.
    ended: bool,
    holder: Holder,
}

impl<I: Iterator<Item: SplitBatch>> Split<I> {
    /// The part of the next batch, or `None` after the last: [`next`](Iterator::next) for who handles errors.
    ///
    /// # Errors
    /// [`DataError`]: the batch has fewer samples than there are ranks, or none at all, its columns differ in size, or libtorch
    /// cannot cut it.
    pub fn f_next(&mut self) -> Result<Option<I::Item>, DataError> {
        let batch = if self.ended {
            None
        } else {
            let _drawing = Drawing::begin(self.share);
            self.batches.next()
        };
        let Some(batch) = batch else {
            self.ended = true;
            self.holder.release();
            return Ok(None);
        };
        if self.share.is_alone() {
            return Ok(Some(batch));
        }
        match batch.batch_size()? {
            BatchSize::Samples(samples) => self.part_of(batch, samples).map(Some),
            BatchSize::Whole => {
                Err(DataError::NoSamples { item: std::any::type_name::<I::Item>() })
            }
            BatchSize::Nothing => {
                self.holder.release();
                Ok(Some(batch))
            }
        }
    }

    fn part_of(&mut self, batch: I::Item, samples: i64) -> Result<I::Item, DataError> {
        let world_size = self.share.world_size();
        if samples < world_size as i64 {
            return Err(DataError::BatchTooSmall { samples, world_size });
        }
        let part = Part::of(samples, self.share);
        let mine = batch.into_samples(part.start, part.rows)?;
        self.holder.hold(part)?;
        Ok(mine)
    }
}

impl<I: Iterator<Item: SplitBatch>> Iterator for Split<I> {
    type Item = I::Item;

    /// # Panics
    ///
    /// Where [`f_next`](Split::f_next) returns an error, which an iterator cannot.
    #[track_caller]
    fn next(&mut self) -> Option<I::Item> {
        match self.f_next() {
            Ok(batch) => batch,
            Err(error) => panic!("{error}"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.ended { (0, Some(0)) } else { self.batches.size_hint() }
    }
}

impl<I: ExactSizeIterator<Item: SplitBatch>> ExactSizeIterator for Split<I> {}

impl<I: Iterator<Item: SplitBatch>> FusedIterator for Split<I> {}

impl<I> fmt::Debug for Split<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split")
            .field("share", &self.share)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::{Kind, Tensor, kind};

    use super::split;
    use crate::data::weight::{Counts, of_step};
    use crate::data::{BatchSize, DataError, Share, SplitBatch};

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    fn rows(n: i64) -> Tensor {
        Tensor::arange(n, kind::INT64_CPU)
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.to_kind(Kind::Int64)).unwrap()
    }

    /// What rank 1 of 2 gets of a batch.
    fn of_rank_1<B: SplitBatch>(batch: B) -> B {
        split([batch], share(1, 2)).f_next().unwrap().unwrap()
    }

    fn error<B: SplitBatch>(batch: B, world: usize) -> String {
        match split([batch], share(0, world)).f_next() {
            Err(error) => error.to_string(),
            Ok(_) => panic!("a part was given"),
        }
    }

    #[test]
    fn columns_of_any_nesting_are_cut_alike() {
        let batch = ((rows(5), vec!["a", "b", "c", "d", "e"]), [rows(5), rows(5) * 2], rows(5));
        let ((x, names), [y, z], w) = of_rank_1(batch);
        assert_eq!((numbers(&x), names), (vec![3, 4], vec!["d", "e"]));
        assert_eq!((numbers(&y), numbers(&z), numbers(&w)), (vec![3, 4], vec![6, 8], vec![3, 4]));
        let six = of_rank_1((rows(2), rows(2), rows(2), rows(2), rows(2), rows(2)));
        assert_eq!(numbers(&six.5), [1]);
    }

    #[test]
    fn a_list_is_one_of_samples_whatever_they_are() {
        let tensors = of_rank_1(vec![rows(3), rows(7), rows(2)]);
        assert_eq!((tensors.len(), numbers(&tensors[0])), (1, vec![0, 1]));
        assert_eq!(of_rank_1(&[1, 2, 3, 4, 5][..]), [4, 5]);
        assert_eq!(*of_rank_1(vec![1, 2, 3].into_boxed_slice()), [3]);
        let mut own = [1, 2, 3];
        of_rank_1(&mut own[..])[0] = 9;
        assert_eq!(own, [1, 2, 9]);
    }

    #[test]
    fn what_has_no_samples_goes_to_every_rank_beside_some() {
        let (number, (x, scale), hint) =
            of_rank_1((7, (rows(4), Tensor::from(0.5)), None::<Tensor>));
        assert_eq!((number, numbers(&x), hint.is_none()), (7, vec![2, 3], true));
        assert_eq!(f64::try_from(scale).unwrap(), 0.5);
        assert_eq!(numbers(&of_rank_1(Some(Box::new(rows(4)))).unwrap()), [2, 3]);
        let undefined = Tensor::new();
        assert_eq!(undefined.batch_size().unwrap(), BatchSize::Whole);
    }

    #[test]
    fn s24_an_error_in_a_batchs_place_reaches_every_rank() {
        let items = || [(0, Ok(rows(4))), (1, Err("torn")), (2, Ok(rows(2)))];
        for rank in 0..2 {
            let mine: Vec<_> = split(items(), share(rank, 2)).collect();
            assert!(matches!(&mine[..], [(0, Ok(_)), (1, Err("torn")), (2, Ok(_))]));
            assert_eq!(
                numbers(mine[0].1.as_ref().unwrap()),
                [2 * rank as i64, 2 * rank as i64 + 1]
            );
        }
    }

    #[test]
    fn what_cannot_be_shared_is_named() {
        assert_eq!(
            error((rows(5), [rows(4)]), 2),
            "the columns of a batch differ in size: `0` has 5 samples, `1` has 4; give them one first dimension, or \
             mark a field that is no column with #[batch(whole)]"
        );
        assert!(error(rows(2), 3).starts_with("3 ranks cannot share a batch of 2 samples"));
        assert!(
            error(Vec::<i64>::new(), 2).starts_with("2 ranks cannot share a batch of 0 samples")
        );
        assert!(error(32_i64, 2).starts_with("an item of this loop, a `i64`, has no samples"));
        assert!(error((1, "a"), 2).contains("`(i32, &str)`"));
        assert!(error(Tensor::from(1.0), 2).contains("has no samples"));
    }

    #[test]
    fn one_rank_takes_anything_as_it_is() {
        let whole: Vec<_> = split(0..3, Share::ALONE).collect();
        assert_eq!(whole, [0, 1, 2]);
        let (x, y) = split([(rows(5), rows(4))], Share::ALONE).f_next().unwrap().unwrap();
        assert_eq!((numbers(&x).len(), numbers(&y).len()), (5, 4));
    }

    #[test]
    fn p20_a_part_counts_by_its_samples_until_the_pass_ends() {
        let mut mine = split([rows(5), rows(4)], share(0, 2));
        let factor = || of_step().unwrap().factor;
        assert!(mine.f_next().unwrap().is_some());
        assert_eq!((factor(), Counts::batch_of(of_step().unwrap().word())), (1.2, 5));
        assert!(mine.f_next().unwrap().is_some());
        assert_eq!(factor(), 1.0);
        assert!(mine.f_next().unwrap().is_none());
        assert_eq!(of_step(), Some(Counts::ONE));
    }

    #[test]
    fn a_source_that_ended_is_not_asked_again() {
        let mut asked = 0;
        let source = std::iter::from_fn(|| {
            asked += 1;
            (asked != 2).then(|| rows(4))
        });
        let mut mine = split(source, share(0, 2));
        assert!(mine.next().is_some() && mine.next().is_none() && mine.next().is_none());
        assert_eq!(mine.size_hint(), (0, Some(0)));
        drop(mine);
        assert_eq!(asked, 2);
    }

    proptest! {
        #[test]
        fn the_parts_of_all_ranks_are_the_batch(samples in 0i64..60, world in 1usize..9) {
            let mut whole = Vec::new();
            for rank in 0..world {
                let part = split([(rows(samples), numbers(&rows(samples)))], share(rank, world)).f_next();
                if samples < world as i64 && world > 1 {
                    let too_small = matches!(part, Err(DataError::BatchTooSmall { .. }));
                    prop_assert!(too_small);
                    return Ok(());
                }
                let (tensor, list) = part.unwrap().unwrap();
                prop_assert_eq!(&numbers(&tensor), &list);
                whole.extend(list);
            }
            prop_assert_eq!(whole, (0..samples).collect::<Vec<_>>());
        }
    }
}
