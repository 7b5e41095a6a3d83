//! The data room: which samples, batches and items are this rank's.
//!
//! Every rank works out its own part from the same facts: the size of the data, the seed, the epoch and its [`Share`].
//! So all of it can be run, and is tested, without a process group. One thing alone asks the other ranks: the order
//! of a shuffled iterator that splits each batch (`batch = "global"`), which rank 0 draws for all.
//!
//! | to share | take |
//! | --- | --- |
//! | indices, as PyTorch's `DistributedSampler` does | [`DistributedSampler`] |
//! | indices of a validation set, without repeats | [`EvalSampler`] |
//! | the batches of [`tch::data::Iter2`] | [`ShardedIter2`] |
//! | the windows of [`tch::data::TextData::iter_shuffle`] | [`ShardedTextIter`] |
//! | the items of any other iterator | [`shard`] |
//! | each batch of any iterator | [`split`] |
//! | samples of a data set of your own, in batches, read ahead | [`DataLoader`] |
//! | what the main rank alone can read | [`dispatch()`] |
//! | samples by weight, or too many to list | [`WeightedSampler`], [`FeistelSampler`] |
//!
//! Two rules hold for all that trains: every rank gets the same number of items, so that no rank waits
//! for a step that another never takes, and what is left over by that rule is named in the item's documentation.

mod batch;
mod batches;
mod collate;
mod dataset;
mod deal;
mod dispatch;
pub mod epoch;
mod global;
mod iter2;
mod loader;
mod order;
mod parcel;
mod part;
mod permutation;
mod sampler;
mod shard;
mod shared_tensor;
mod split;
mod state;
mod text;
mod tree;
mod tuples;
pub(crate) mod weight;
mod weighted;

use tch::TchError;

pub use batch::{BatchSize, SplitBatch};
pub use collate::{Collate, CollateError};
pub use dataset::{BoxError, Dataset, IterableDataset, Rows, Samples, TensorDataset};
pub use deal::{RankIndices, Remainder};
pub use dispatch::{Dispatch, Dispatched, dispatch};
pub use epoch::EpochClock;
pub use iter2::ShardedIter2;
pub use loader::{
    Batches, Builder, ByType, CollateWith, DataLoader, LoaderError, Map, PinMemory, Stream, With,
    WorkerInfo, Workers, sample_seed, worker_info,
};
pub use order::{Indices, RandomSampler, Sampler, SequentialSampler};
pub use permutation::{FeistelSampler, Permutation};
pub use sampler::{DistributedSampler, EvalSampler, SamplerError};
pub use shard::{Shard, shard};
pub use shared_tensor::SharedTensor;
pub use split::{Split, split};
pub use state::{LoaderState, StateError};
pub use text::ShardedTextIter;
pub use tree::TensorTree;
pub use weighted::WeightedSampler;

/// Who this process is among those that share the data: a rank, and how many ranks there are.
///
/// ```
/// use ddp_runtime::data::Share;
///
/// let share = Share::new(1, 4)?;
/// assert_eq!((share.rank(), share.world_size()), (1, 4));
/// assert!(Share::new(4, 4).is_err());
/// # Ok::<(), ddp_runtime::data::ShareError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    rank: usize,
    world_size: usize,
}

impl Share {
    /// The share of a process that has all the data to itself.
    pub const ALONE: Share = Share { rank: 0, world_size: 1 };

    /// The most ranks there can be: c10d counts them in a C `int`.
    const MAX_WORLD_SIZE: usize = i32::MAX as usize;

    /// The share of rank `rank` of `world_size`.
    ///
    /// # Errors
    ///
    /// [`ShareError`] unless `rank < world_size <= i32::MAX`; PyTorch's sampler checks the same interval.
    pub fn new(rank: usize, world_size: usize) -> Result<Self, ShareError> {
        if world_size == 0 {
            Err(ShareError::NoRanks)
        } else if world_size > Self::MAX_WORLD_SIZE {
            Err(ShareError::TooManyRanks { world_size })
        } else if rank >= world_size {
            Err(ShareError::RankOutOfRange { rank, world_size })
        } else {
            Ok(Self { rank, world_size })
        }
    }

    /// This process' number, `0..world_size`.
    pub fn rank(self) -> usize {
        self.rank
    }

    /// How many processes share the data; at least 1.
    pub fn world_size(self) -> usize {
        self.world_size
    }

    /// Whether nobody shares the data with this process.
    pub fn is_alone(self) -> bool {
        self.world_size == 1
    }
}

/// A [`Share`] that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The world has no ranks.
    #[error("a world size of 0; data is shared among one rank or more")]
    NoRanks,
    /// The rank is not in `0..world_size`.
    #[error("rank {rank} does not exist among {world_size}; ranks count from 0 to {}", world_size - 1)]
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// More ranks than c10d can count.
    #[error("a world size of {world_size}; at most {} ranks can share data", Share::MAX_WORLD_SIZE)]
    TooManyRanks {
        /// The number of ranks asked for.
        world_size: usize,
    },
}

/// What the order of shuffled data follows from: equal on all ranks, and nothing else counts.
///
/// Epoch `e` is shuffled by a generator seeded with `seed + e` (wrapping), as in PyTorch's `DistributedSampler`,
/// never by the global generator: however many random numbers a rank has drawn, all ranks see one order.
///
/// Numbers from 2^32 on are those of repeated passes ([`EpochClock`]). libtorch's generator looks at the lower 32 bits of its
/// seed alone and would shuffle them like the first pass of their epoch; so they are hashed before they are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Order {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
}

impl Order {
    /// The seed of the generator that shuffles.
    fn generator_seed(self) -> u64 {
        let epoch = if self.epoch >> 32 == 0 { self.epoch } else { order::mix(self.epoch) };
        self.seed.wrapping_add(epoch)
    }
}

/// Why a shared iterator cannot give a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// One process would get a batch out of this data, but it is not enough for one on each rank. Going on would
    /// train on nothing.
    #[error(
        "{samples} samples are not enough for a batch of {batch_size} on each of {world_size} ranks; \
         take a smaller batch, fewer ranks, or keep the smaller last batch"
    )]
    NotABatchEach {
        /// Samples in the data set: rows, or windows of a text.
        samples: i64,
        /// Samples in one rank's batch.
        batch_size: i64,
        /// The number of ranks.
        world_size: usize,
    },
    /// A batch that the ranks share has not a row for each of them.
    #[error(
        "{world_size} ranks cannot share a batch of size {rows} ({samples} samples in batches of \
         {batch_size}); take fewer ranks, a batch size of at least {world_size}, or drop the smaller last batch"
    )]
    FewerRowsThanRanks {
        /// Rows in the batch.
        rows: i64,
        /// Samples in the data set: rows, or windows of a text.
        samples: i64,
        /// Rows in all other batches.
        batch_size: i64,
        /// The number of ranks.
        world_size: usize,
    },
    /// A batch that the ranks share has not a sample for each of them.
    #[error(
        "{world_size} ranks cannot share a batch of {samples} samples; take fewer ranks, batches of at least \
         {world_size}, or leave the smaller last batch out"
    )]
    BatchTooSmall {
        /// Samples in the batch.
        samples: i64,
        /// The number of ranks.
        world_size: usize,
    },
    /// The columns of a batch do not have one number of samples.
    #[error(
        "the columns of a batch differ in size: `{first}` has {first_samples} samples, `{other}` has \
         {other_samples}; give them one first dimension, or mark a field that is no column with #[batch(whole)]"
    )]
    UnequalColumns {
        /// A column.
        first: String,
        /// Its samples.
        first_samples: i64,
        /// The first one that differs.
        other: String,
        /// Its samples.
        other_samples: i64,
    },
    /// The ranks are to share something that has no samples.
    #[error(
        "an item of this loop, a `{item}`, has no samples that the ranks could share; make the batch in the head of the \
         loop, as in `.map(|start| (xs.narrow(0, start, 32), ys.narrow(0, start, 32)))`, or mark the loop \
         #[ddp(same)] or #[ddp(each)]"
    )]
    NoSamples {
        /// The type of the item.
        item: &'static str,
    },
    /// Parts of unequal size, or of a sum, were drawn on a thread that does not train.
    #[error(
        "a part of a batch was drawn on a thread of its own, so how much each rank's gradient counts is not known; draw \
         it on the thread that steps; where the loss is a mean, a batch size that the number of ranks divides, \
         without the smaller last batch, does as well"
    )]
    OtherThread,
    /// The ranks could not agree on an order.
    #[error(transparent)]
    Ranks(#[from] crate::Error),
    /// A text is shorter than the sequences asked of it, or these have no characters.
    #[error(
        "sequences of {seq_len} characters cannot be taken from a text of {text_len}; \
         the length must be from 1 to that of the text"
    )]
    SequenceLength {
        /// Characters in a sequence.
        seq_len: i64,
        /// Characters in the text.
        text_len: i64,
    },
    /// There are more readers than ranks can be.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The order of the samples could not be worked out.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// libtorch could not gather or move a batch.
    #[error("gathering a batch: {0}")]
    Tch(#[from] TchError),
}

#[cfg(test)]
mod tests {
    use super::{Share, ShareError};

    #[test]
    fn a_share_is_a_rank_of_its_world() {
        let share = Share::new(2, 3).unwrap();
        assert_eq!((share.rank(), share.world_size(), share.is_alone()), (2, 3, false));
        assert_eq!(Share::new(0, 1), Ok(Share::ALONE));
        assert!(Share::ALONE.is_alone());
    }

    #[test]
    fn what_is_no_share_is_named() {
        let text = |rank, world| Share::new(rank, world).unwrap_err().to_string();
        assert_eq!(Share::new(0, 0), Err(ShareError::NoRanks));
        assert_eq!(text(3, 3), "rank 3 does not exist among 3; ranks count from 0 to 2");
        assert_eq!(
            text(0, 1 << 31),
            "a world size of 2147483648; at most 2147483647 ranks can share data"
        );
    }
}
