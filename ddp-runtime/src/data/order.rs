//! The common order of an epoch: which sample stands at which place, before anybody takes a share.

use std::fmt;
use std::sync::Arc;

use super::{Order, SamplerError};
use crate::bridge;

/// Puts the samples of an epoch in an order that all ranks agree on; who takes what of it is decided elsewhere
/// ([`Indices::of_rank`], or a [`DataLoader`](super::DataLoader)).
///
/// So a sampler knows nothing of ranks, and each one serves any number of them. This is the difference to PyTorch,
/// where a sampler is either distributed or weighted.
///
/// ```
/// use ddp_runtime::data::{Indices, Order, Sampler, SamplerError};
///
/// /// The samples from the last to the first, in every epoch.
/// #[derive(Debug)]
/// struct Backwards(usize);
///
/// impl Sampler for Backwards {
///     fn len(&self) -> usize {
///         self.0
///     }
///     fn indices(&self, _order: Order) -> Result<Indices, SamplerError> {
///         let len = self.0;
///         Ok(Indices::computed(len, move |place| len - 1 - place))
///     }
/// }
///
/// let indices = Backwards(5).indices(Order::default())?;
/// assert_eq!(indices.iter().collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
/// # Ok::<(), SamplerError>(())
/// ```
pub trait Sampler: fmt::Debug + Send + Sync {
    /// How many places the order of an epoch has; the same in every epoch.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The order of one epoch. A function of `order` and of what the sampler was made from, and of nothing else: every
    /// rank works it out for itself.
    ///
    /// # Errors
    /// [`SamplerError`] where there is no such order.
    fn indices(&self, order: Order) -> Result<Indices, SamplerError>;
}

/// The samples of one epoch in their order: a list, or a rule that tells what stands at a place.
#[derive(Clone)]
pub struct Indices(Rule);

#[derive(Clone)]
enum Rule {
    Sequential(usize),
    Listed(Arc<[i64]>),
    Computed(usize, Arc<dyn Fn(usize) -> usize + Send + Sync>),
}

impl Indices {
    /// `0, 1, .., len - 1`.
    #[must_use]
    pub fn sequential(len: usize) -> Self {
        Self(Rule::Sequential(len))
    }

    /// The indices of a list, none of them negative.
    ///
    /// # Errors
    /// [`SamplerError::NegativeIndex`] names the first one that is.
    pub fn listed(indices: impl Into<Arc<[i64]>>) -> Result<Self, SamplerError> {
        let indices = indices.into();
        match indices.iter().position(|&index| index < 0) {
            Some(place) => Err(SamplerError::NegativeIndex { place, index: indices[place] }),
            None => Ok(Self(Rule::Listed(indices))),
        }
    }

    /// What `rule` says of each place below `len`, which needs no memory.
    #[must_use]
    pub fn computed(len: usize, rule: impl Fn(usize) -> usize + Send + Sync + 'static) -> Self {
        Self(Rule::Computed(len, Arc::new(rule)))
    }

    /// How many places there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Rule::Sequential(len) | Rule::Computed(len, _) => *len,
            Rule::Listed(indices) => indices.len(),
        }
    }

    /// Whether there is no place.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at a place; `None` from [`len`](Self::len) on.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<usize> {
        if place >= self.len() {
            return None;
        }
        Some(match &self.0 {
            Rule::Sequential(_) => place,
            // Not negative, by the constructor.
            Rule::Listed(indices) => indices[place] as usize,
            Rule::Computed(_, rule) => rule(place),
        })
    }

    /// All samples, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).filter_map(|place| self.at(place))
    }

    /// A number that differs, but for a chance of 2^-64, where the orders differ in their length or one of up to 64 places
    /// that lie evenly: to recognise an order that was met before.
    pub(crate) fn fingerprint(&self) -> u64 {
        let len = self.len();
        let step = len.div_ceil(64).max(1);
        let places = (0..len).step_by(step).filter_map(|place| self.at(place));
        places.fold(mix(len as u64), |hash, index| mix(hash ^ mix(index as u64)))
    }
}

impl fmt::Debug for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<usize> = self.iter().take(8).collect();
        f.debug_struct("Indices").field("len", &self.len()).field("first", &first).finish()
    }
}

/// A bijection of 64-bit numbers in which each bit of the result depends on all bits of `x`: the finalizer of splitmix64
/// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, with Stafford's constants).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The samples as they lie, in every epoch (PyTorch's `SequentialSampler`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequentialSampler {
    len: usize,
}

impl SequentialSampler {
    /// A sampler over `len` samples.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len }
    }
}

impl Sampler for SequentialSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn indices(&self, _order: Order) -> Result<Indices, SamplerError> {
        Ok(Indices::sequential(self.len))
    }
}

/// Every sample once, in the order that PyTorch's `DistributedSampler` shuffles: `randperm` of a generator seeded with
/// `seed + epoch`.
///
/// The order is a list of 8 bytes a sample on every rank. For data sets that are too large for it there is
/// [`FeistelSampler`](super::FeistelSampler).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    len: usize,
}

impl RandomSampler {
    /// A sampler over `len` samples.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn indices(&self, order: Order) -> Result<Indices, SamplerError> {
        let Order { seed, epoch } = order;
        let len =
            i64::try_from(self.len).map_err(|_| SamplerError::TooManySamples { len: self.len })?;
        let indices = bridge::randperm(order.generator_seed(), len)
            .map_err(|source| SamplerError::Permutation { seed, epoch, source })?;
        Ok(Indices(Rule::Listed(indices.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::{Indices, RandomSampler, Sampler, SequentialSampler};
    use crate::data::{DistributedSampler, Order, SamplerError, Share};

    #[test]
    fn a_place_beyond_the_order_has_no_sample() {
        let indices = SequentialSampler::new(3).indices(Order::default()).unwrap();
        assert_eq!([0, 2, 3].map(|place| indices.at(place)), [Some(0), Some(2), None]);
        assert_eq!(Indices::computed(2, |place| place + 7).at(2), None);
        assert!(SequentialSampler::new(0).is_empty() && Indices::sequential(0).is_empty());
    }

    #[test]
    fn the_random_order_is_that_of_the_distributed_sampler() {
        let mut theirs = DistributedSampler::new(29, Share::ALONE).seed(5);
        theirs.set_epoch(3);
        let ours = RandomSampler::new(29).indices(Order { seed: 5, epoch: 3 }).unwrap();
        let theirs: Vec<usize> =
            theirs.indices().unwrap().into_iter().map(|index| index as usize).collect();
        assert_eq!(ours.iter().collect::<Vec<_>>(), theirs);
    }

    #[test]
    fn a_negative_index_is_refused() {
        let error = Indices::listed(vec![3, -1]).unwrap_err();
        assert!(matches!(error, SamplerError::NegativeIndex { place: 1, index: -1 }));
    }

    #[test]
    fn orders_that_differ_have_other_fingerprints() {
        let of = |len, seed| {
            let order = Order { seed, epoch: 0 };
            RandomSampler::new(len).indices(order).unwrap().fingerprint()
        };
        assert_eq!(of(1000, 1), of(1000, 1));
        assert_ne!(of(1000, 1), of(1000, 2));
        assert_ne!(of(1000, 1), of(999, 1));
        assert_ne!(Indices::sequential(0).fingerprint(), Indices::sequential(1).fingerprint());
    }
}
