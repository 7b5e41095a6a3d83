//! Which indices of a data set are this rank's, with PyTorch's padding for training and without it for evaluation.

use super::{Order, Share};
use crate::bridge::{self, BridgeError};

/// The indices that a rank trains on, index for index as `torch.utils.data.DistributedSampler` gives them.
///
/// The rule, for `len` samples and `W` ranks:
///
/// 1. shuffled (the default), the order is `randperm(len)` from a CPU generator seeded with `seed + epoch`;
///    else it is `0..len`;
/// 2. the order is repeated from its start up to the next multiple of `W`, several times if need be; with
///    [`drop_last`](Self::drop_last) it is cut to the multiple before instead;
/// 3. rank `r` takes places `r`, `r + W`, `r + 2 W`, ...
///
/// So each rank gets [`num_samples`](Self::num_samples) indices. Where PyTorch gives no rank any (an empty data
/// set, or fewer samples than ranks with `drop_last`) and would train on nothing, [`indices`](Self::indices) is an
/// error. Seed and epoch are added modulo 2^64.
///
/// ```no_run
/// use ddp_runtime::data::{DistributedSampler, Share};
///
/// let mut sampler = DistributedSampler::new(50_000, Share::new(0, 4)?).seed(7).drop_last(true);
/// for epoch in 0..10 {
///     sampler.set_epoch(epoch);
///     let rows = sampler.indices()?;
///     assert_eq!(rows.len(), 12_500);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever forgets `set_epoch` in PyTorch sees one order for ever. Here
/// [`next_epoch_indices`](Self::next_epoch_indices) moves on by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DistributedSampler {
    len: usize,
    share: Share,
    order: Order,
    shuffle: bool,
    drop_last: bool,
}

impl DistributedSampler {
    /// A sampler over `len` samples: shuffled, seed 0, epoch 0, padded, as PyTorch's without arguments.
    pub fn new(len: usize, share: Share) -> Self {
        Self { len, share, order: Order::default(), shuffle: true, drop_last: false }
    }

    /// Whether the order is shuffled (PyTorch's `shuffle=`).
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Whether what does not divide by the number of ranks is dropped rather than padded (`drop_last=`).
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// The seed of the order, equal on all ranks (`seed=`).
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.order.seed = seed;
        self
    }

    /// Sets the epoch that the next order belongs to, counted from 0.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.order.epoch = epoch;
    }

    /// The epoch that the next order belongs to.
    pub fn epoch(&self) -> u64 {
        self.order.epoch
    }

    /// How many indices each rank gets, repeats included: PyTorch's `len(sampler)`.
    pub fn num_samples(&self) -> usize {
        if self.drop_last {
            self.len / self.share.world_size
        } else {
            self.len.div_ceil(self.share.world_size)
        }
    }

    /// How many indices all ranks get together, repeats included: PyTorch's `total_size`.
    ///
    /// Saturates, which only a data set of nearly `usize::MAX` samples could show.
    pub fn total_size(&self) -> usize {
        self.num_samples().saturating_mul(self.share.world_size)
    }

    /// This rank's indices for the current epoch, in order. Reading them changes nothing.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if no rank would get a sample, or if libtorch cannot draw the order.
    pub fn indices(&self) -> Result<Vec<i64>, SamplerError> {
        self.check()?;
        // The order repeated for ever has at place k what it has at k modulo its length; so the padded order
        // need not be laid out.
        let places = (0..self.num_samples())
            .map(|round| (self.share.rank + round * self.share.world_size) % self.len);
        if self.shuffle {
            let order = self.permutation()?;
            Ok(places.map(|place| order[place]).collect())
        } else {
            Ok(places.map(|place| place as i64).collect())
        }
    }

    /// This rank's indices for the current epoch; the sampler then moves on to the next one.
    ///
    /// [`set_epoch`](Self::set_epoch) puts it anywhere, such as to the epoch where a resumed run goes on.
    ///
    /// # Errors
    ///
    /// As [`indices`](Self::indices); the sampler then stays where it was.
    pub fn next_epoch_indices(&mut self) -> Result<Vec<i64>, SamplerError> {
        let indices = self.indices()?;
        self.order.epoch = self.order.epoch.wrapping_add(1);
        Ok(indices)
    }

    fn check(&self) -> Result<(), SamplerError> {
        let (len, world_size) = (self.len, self.share.world_size);
        if len == 0 {
            Err(SamplerError::NoSamples)
        } else if i64::try_from(len).is_err() {
            Err(SamplerError::TooManySamples { len })
        } else if self.drop_last && len < world_size {
            Err(SamplerError::NotASampleEach { len, world_size })
        } else {
            Ok(())
        }
    }

    fn permutation(&self) -> Result<Vec<i64>, SamplerError> {
        let Order { seed, epoch } = self.order;
        bridge::randperm(self.order.generator_seed(), self.len as i64)
            .map_err(|source| SamplerError::Permutation { seed, epoch, source })
    }
}

/// The indices that a rank evaluates: every sample exactly once over all ranks, in order, without repeats.
///
/// PyTorch's sampler pads with repeats, so that a validation figure depends on the number of ranks. Here rank `r`
/// takes `r`, `r + W`, `r + 2 W`, ... as far as there are samples: some ranks may get one sample more than
/// others, or none at all when there are more ranks than samples. Sum over ranks *and* count over ranks, then
/// divide, and the figure is that of one process.
///
/// As the counts differ, no collective may be called once a sample or batch: reduce after the loop.
///
/// ```
/// use ddp_runtime::data::{EvalSampler, Share};
///
/// let sampler = EvalSampler::new(5, Share::new(1, 2)?);
/// assert_eq!(sampler.indices(), [1, 3]);
/// # Ok::<(), ddp_runtime::data::ShareError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalSampler {
    len: usize,
    share: Share,
}

impl EvalSampler {
    /// A sampler over `len` samples.
    pub fn new(len: usize, share: Share) -> Self {
        Self { len, share }
    }

    /// How many indices this rank gets; ranks differ by one at most.
    pub fn num_samples(&self) -> usize {
        // Rank r's samples are those left from r on, in steps of W.
        self.len.saturating_sub(self.share.rank).div_ceil(self.share.world_size)
    }

    /// This rank's indices, in order.
    pub fn indices(&self) -> Vec<i64> {
        let mine = (self.share.rank..self.len).step_by(self.share.world_size);
        mine.map(|index| index as i64).collect()
    }
}

/// Why a [`DistributedSampler`] has no indices to give.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The data set has no samples. PyTorch gives an empty order here.
    #[error("the data set is empty; a sampler needs at least one sample")]
    NoSamples,
    /// With `drop_last` nothing is left for any rank. PyTorch gives an empty order here.
    #[error(
        "dropping the last samples leaves none: {len} samples for {world_size} ranks; \
         use fewer ranks, or leave drop_last off so that samples are repeated"
    )]
    NotASampleEach {
        /// Samples in the data set.
        len: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// More samples than an index tensor can number.
    #[error("{len} samples; at most {} can be numbered", i64::MAX)]
    TooManySamples {
        /// Samples in the data set.
        len: usize,
    },
    /// An order holds a negative index.
    #[error("an order has the index {index} at place {place}; samples are numbered from 0")]
    NegativeIndex {
        /// Where it stands.
        place: usize,
        /// The index.
        index: i64,
    },
    /// A weight is negative, not a number, or too large to be added to the others.
    #[error(
        "the weight of sample {index} is {weight}; weights and their sum must be finite, and none negative"
    )]
    Weight {
        /// The sample.
        index: usize,
        /// Its weight.
        weight: f64,
    },
    /// No sample has a weight above 0.
    #[error("no sample has a weight above 0, so none can be drawn")]
    NoWeight,
    /// Samples are to be drawn once each, and there are too few that can be.
    #[error(
        "{samples} samples cannot be drawn without replacement: {positive} have a weight above 0; draw fewer, or          with replacement"
    )]
    TooFewWeights {
        /// Samples to draw.
        samples: usize,
        /// Samples with a weight above 0.
        positive: usize,
    },
    /// More weights than libtorch draws by.
    #[error("{weights} weights; libtorch draws by at most 2^24")]
    TooManyWeights {
        /// The number of weights.
        weights: usize,
    },
    /// libtorch failed to draw the order.
    #[error("drawing the order of epoch {epoch} with seed {seed}: {source}")]
    Permutation {
        /// The seed.
        seed: u64,
        /// The epoch.
        epoch: u64,
        /// libtorch's error.
        source: BridgeError,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{DistributedSampler, EvalSampler, SamplerError};
    use crate::bridge;
    use crate::data::{EpochClock, Share};

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    /// What each of `world` ranks gets.
    fn all_ranks(
        len: usize,
        world: usize,
        set: fn(DistributedSampler) -> DistributedSampler,
    ) -> Vec<Vec<i64>> {
        let sampler = |rank| set(DistributedSampler::new(len, share(rank, world)));
        (0..world).map(|rank| sampler(rank).indices().unwrap()).collect()
    }

    /// The order that all ranks share, put together again from what each rank got.
    fn interleaved(ranks: &[Vec<i64>]) -> Vec<i64> {
        (0..ranks[0].len()).flat_map(|round| ranks.iter().map(move |own| own[round])).collect()
    }

    /// What `list(DistributedSampler(range(n), ..))` gives in PyTorch 2.13.
    #[test]
    fn the_indices_are_those_of_pytorch() {
        let indices = |len, rank, world, seed, epoch, drop_last| {
            let mut sampler =
                DistributedSampler::new(len, share(rank, world)).seed(seed).drop_last(drop_last);
            sampler.set_epoch(epoch);
            sampler.indices().unwrap()
        };
        assert_eq!(indices(10, 1, 3, 42, 3, false), [6, 4, 8, 7]);
        assert_eq!(indices(10, 2, 3, 42, 3, true), [5, 9, 2]);
        assert_eq!(indices(3, 7, 8, 0, 0, false), [0]);
    }

    #[test]
    fn without_shuffle_the_order_is_padded_from_its_start() {
        let ranks = all_ranks(5, 3, |sampler| sampler.shuffle(false));
        assert_eq!(ranks, [vec![0, 3], vec![1, 4], vec![2, 0]]);
    }

    #[test]
    fn more_ranks_than_twice_the_samples_repeat_the_order_several_times() {
        let ranks = all_ranks(2, 5, |sampler| sampler.shuffle(false));
        assert_eq!(ranks, [vec![0], vec![1], vec![0], vec![1], vec![0]]);
    }

    #[test]
    fn drop_last_cuts_the_order() {
        let ranks = all_ranks(8, 3, |sampler| sampler.shuffle(false).drop_last(true));
        assert_eq!(ranks, [vec![0, 3], vec![1, 4], vec![2, 5]]);
    }

    #[test]
    fn what_leaves_no_rank_a_sample_is_refused() {
        let empty = DistributedSampler::new(0, share(0, 2)).indices();
        assert!(matches!(empty, Err(SamplerError::NoSamples)));
        let few = DistributedSampler::new(3, share(0, 4)).drop_last(true).indices();
        let few = few.unwrap_err();
        assert!(matches!(few, SamplerError::NotASampleEach { len: 3, world_size: 4 }));
        assert!(few.to_string().contains("3 samples for 4 ranks"));
        let endless = DistributedSampler::new(usize::MAX, share(0, 2));
        assert!(matches!(endless.indices(), Err(SamplerError::TooManySamples { .. })));
        assert_eq!(endless.total_size(), usize::MAX);
    }

    #[test]
    fn seed_and_epoch_count_as_their_sum() {
        let sampler = DistributedSampler::new(40, share(1, 2));
        let mut told = sampler.clone().seed(3);
        told.set_epoch(4);
        assert_eq!(told.indices().unwrap(), sampler.clone().seed(7).indices().unwrap());
        let mut wrapped = sampler.clone().seed(u64::MAX);
        wrapped.set_epoch(2);
        assert_eq!(wrapped.indices().unwrap(), sampler.seed(1).indices().unwrap());
    }

    #[test]
    fn p05_a_sampler_that_is_never_told_moves_on() {
        let mut sampler = DistributedSampler::new(40, share(0, 2)).seed(5);
        let first = sampler.next_epoch_indices().unwrap();
        let second = sampler.next_epoch_indices().unwrap();
        assert_ne!(first, second);
        assert_eq!(sampler.epoch(), 2);
        sampler.set_epoch(1);
        assert_eq!(sampler.next_epoch_indices().unwrap(), second);
    }

    /// The passes through one epoch have numbers that differ above the bits that libtorch's generator looks at.
    #[test]
    fn p05_a_repeated_pass_has_another_order() {
        let indices = |epoch| {
            let mut sampler = DistributedSampler::new(40, share(0, 2));
            sampler.set_epoch(epoch);
            sampler.indices().unwrap()
        };
        let mut clock = EpochClock::new();
        clock.tell(1);
        let passes = [(); 3].map(|()| indices(clock.epoch_at("train")));
        assert_eq!(passes[0], indices(1));
        assert!(passes[0] != passes[1] && passes[0] != passes[2] && passes[1] != passes[2]);
    }

    #[test]
    fn a_failed_epoch_is_not_skipped() {
        let mut sampler = DistributedSampler::new(0, Share::ALONE);
        assert!(sampler.next_epoch_indices().is_err());
        assert_eq!(sampler.epoch(), 0);
    }

    #[test]
    fn p06_evaluation_repeats_nothing() {
        let ranks: Vec<_> =
            (0..3).map(|rank| EvalSampler::new(4, share(rank, 3)).indices()).collect();
        assert_eq!(ranks, [vec![0, 3], vec![1], vec![2]]);
        assert!(EvalSampler::new(2, share(2, 3)).indices().is_empty());
        assert!(EvalSampler::new(0, share(0, 3)).indices().is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The definition, written the long way: lay the padded order out, then deal it.
        #[test]
        fn ranks_together_get_the_padded_permutation(len in 1usize..200, world in 1usize..40, seed: u64, epoch in 0u64..9) {
            let order = bridge::randperm(seed.wrapping_add(epoch), len as i64).unwrap();
            let total = len.div_ceil(world) * world;
            let padded: Vec<i64> = order.iter().copied().cycle().take(total).collect();
            let mut ranks = Vec::new();
            for rank in 0..world {
                let mut sampler = DistributedSampler::new(len, share(rank, world)).seed(seed);
                sampler.set_epoch(epoch);
                let own = sampler.indices().unwrap();
                prop_assert_eq!(own.len(), sampler.num_samples());
                prop_assert_eq!(total, sampler.total_size());
                ranks.push(own);
            }
            prop_assert_eq!(interleaved(&ranks), padded);
        }

        #[test]
        fn ranks_together_get_the_cut_permutation(len in 1usize..200, world in 1usize..40, seed: u64) {
            prop_assume!(len >= world);
            let order = bridge::randperm(seed, len as i64).unwrap();
            let ranks: Vec<_> = (0..world)
                .map(|rank| {
                    let sampler = DistributedSampler::new(len, share(rank, world)).seed(seed);
                    sampler.drop_last(true).indices().unwrap()
                })
                .collect();
            prop_assert_eq!(interleaved(&ranks), &order[..len / world * world]);
        }

        #[test]
        fn evaluation_sees_every_sample_once(len in 0usize..300, world in 1usize..40) {
            let ranks: Vec<_> = (0..world).map(|rank| EvalSampler::new(len, share(rank, world))).collect();
            let counts: Vec<_> = ranks.iter().map(EvalSampler::num_samples).collect();
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            prop_assert!(spread <= 1);
            for (sampler, count) in ranks.iter().zip(counts) {
                prop_assert_eq!(sampler.indices().len(), count);
            }
            let mut all: Vec<_> = ranks.iter().flat_map(EvalSampler::indices).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..len as i64).collect::<Vec<_>>());
        }
    }
}
