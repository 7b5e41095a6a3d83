//! Shuffling without a list: a keyed permutation of any number of samples, in constant memory.

use super::order::mix;
use super::{Indices, Order, Sampler, SamplerError};

/// How often each half is mixed into the other.
const ROUNDS: usize = 4;

/// A pseudorandom permutation of `0..len`, any place of which is told in constant time and memory.
///
/// A generalized Feistel network on `a` times `b` numbers, `a` the square root of `len` rounded up and `a b` the next
/// multiple: 8 rounds, with a 64-bit hash as round function. What falls beyond `len` (fewer than `a` of `a b` numbers) is
/// sent through the network again until it falls below ("cycle walking"), so that a place costs one passage and very
/// rarely more. Source: J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, method 3.
///
/// Not every one of the `len!` permutations has a key, and nothing is kept secret by it: it is a shuffle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    a: u64,
    b: u64,
    keys: [[u64; 2]; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that belongs to `key`.
    #[must_use]
    pub fn new(len: usize, key: u64) -> Self {
        let len = len as u64;
        let root = len.isqrt();
        let a = (root + u64::from(root * root < len)).max(1);
        let b = len.div_ceil(a).max(1);
        let key = mix(key);
        let keys =
            std::array::from_fn(|round| [0, 1].map(|half| mix(key ^ mix(2 * round as u64 + half))));
        Self { len, a, b, keys }
    }

    /// How many numbers it permutes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it permutes none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What stands at `place`; `None` from [`len`](Self::len) on.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<usize> {
        let mut at = place as u64;
        if at >= self.len {
            return None;
        }
        // The network permutes 0..a*b, so this walk comes back below `len`: at the latest to where it began.
        loop {
            at = self.network(at);
            if at < self.len {
                return Some(at as usize);
            }
        }
    }

    fn network(&self, at: u64) -> u64 {
        let (mut left, mut right) = (at % self.a, at / self.a);
        for [one, other] in self.keys {
            left = (left + below(self.a, mix(right ^ one))) % self.a;
            right = (right + below(self.b, mix(left ^ other))) % self.b;
        }
        self.a * right + left
    }
}

/// A hash brought below `limit`, as evenly as 64 bits can be.
fn below(limit: u64, hash: u64) -> u64 {
    ((u128::from(hash) * u128::from(limit)) >> 64) as u64
}

/// Every sample once, in an order that is worked out place by place: for data sets too large to permute in memory.
///
/// 10^9 samples need no more than ten do, where [`RandomSampler`](super::RandomSampler) would keep 8 GB on every rank. The
/// order is another in each epoch, follows from `seed` and `epoch` each for itself (not from their sum), and is not that of
/// PyTorch; see [`Permutation`].
///
/// ```
/// use ddp_runtime::data::{FeistelSampler, Order, Remainder, Sampler, Share};
///
/// let indices = FeistelSampler::new(1_000_000_000).indices(Order { seed: 7, epoch: 0 })?;
/// let mine = indices.of_rank(Share::new(3, 8)?, Remainder::Repeat);
/// assert_eq!(mine.len(), 125_000_000);
/// assert_eq!(mine.take(3).filter(|&index| index < 1_000_000_000).count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeistelSampler {
    len: usize,
}

impl FeistelSampler {
    /// A sampler over `len` samples.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len }
    }
}

impl Sampler for FeistelSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn indices(&self, order: Order) -> Result<Indices, SamplerError> {
        let permutation = Permutation::new(self.len, mix(order.seed) ^ order.epoch);
        // Every place below `len` has an answer.
        Ok(Indices::computed(self.len, move |place| permutation.at(place).unwrap_or(place)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::{FeistelSampler, Permutation};
    use crate::data::{Order, Remainder, Sampler, Share};

    fn all(len: usize, key: u64) -> Vec<usize> {
        let permutation = Permutation::new(len, key);
        (0..len).map(|place| permutation.at(place).unwrap()).collect()
    }

    fn is_permutation(order: &[usize]) -> bool {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..order.len())
    }

    #[test]
    fn every_small_size_is_permuted() {
        for len in 0..600 {
            assert!(is_permutation(&all(len, len as u64)), "{len}");
        }
        assert_eq!(Permutation::new(3, 1).at(3), None);
    }

    #[test]
    fn the_largest_sizes_are_told_without_overflow() {
        for len in [usize::MAX / 2, (1 << 62) + 1, 1 << 40] {
            let permutation = Permutation::new(len, 9);
            let told: HashSet<_> =
                (0..1000).map(|place| permutation.at(len - 1 - place).unwrap()).collect();
            assert!(told.len() == 1000 && told.iter().all(|&index| index < len));
        }
    }

    /// All orders of four samples come up, none of them much more often than its turn.
    #[test]
    fn small_sets_see_all_their_orders() {
        let mut counts = std::collections::HashMap::new();
        for key in 0..24_000 {
            *counts.entry(all(4, key)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Mean 1000, standard deviation 31; a network that favours an order is off by far more.
        assert!(counts.values().all(|count| (700..1300).contains(count)), "{counts:?}");
    }

    /// Where a sample goes does not depend on where it was: a chi-squared test over 16 by 16 stretches.
    #[test]
    fn places_and_samples_are_independent() {
        let (len, keys, bins) = (997, 400, 16);
        let mut counts = vec![0_f64; bins * bins];
        for key in 0..keys {
            for (place, index) in all(len, key).into_iter().enumerate() {
                counts[place * bins / len * bins + index * bins / len] += 1.0;
            }
        }
        let size = |bin: usize| (0..len).filter(|place| place * bins / len == bin).count() as f64;
        let expected = |at: usize| keys as f64 * size(at / bins) * size(at % bins) / len as f64;
        let chi: f64 = counts
            .iter()
            .enumerate()
            .map(|(at, count)| (count - expected(at)).powi(2) / expected(at))
            .sum();
        // 225 degrees of freedom: mean 225, standard deviation 21.
        assert!((120.0..330.0).contains(&chi), "chi squared is {chi}");
    }

    /// Neighbours do not stay neighbours, and about one sample an order stays where it was, as in a random permutation.
    #[test]
    fn neighbours_part_and_few_samples_stay() {
        let (len, keys) = (5000, 200);
        let (mut near, mut fixed) = (0, 0);
        for key in 0..keys {
            let order = all(len, key);
            near += order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
            fixed += order.iter().enumerate().filter(|(place, index)| place == *index).count();
        }
        // Both are Poisson: means 2 and 1 an order, over 200 orders 400 +- 20 and 200 +- 14.
        assert!((320..480).contains(&near), "{near} neighbours in {keys} orders");
        assert!((140..260).contains(&fixed), "{fixed} samples stayed in {keys} orders");
    }

    #[test]
    fn another_epoch_and_another_seed_have_another_order() {
        let order = |seed, epoch| {
            let indices = FeistelSampler::new(1000).indices(Order { seed, epoch }).unwrap();
            indices.iter().collect::<Vec<_>>()
        };
        assert_eq!(order(1, 2), order(1, 2));
        let orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1), order(0, 2)];
        for (at, one) in orders.iter().enumerate() {
            for other in &orders[at + 1..] {
                let same = one.iter().zip(other).filter(|(one, other)| one == other).count();
                assert!(same < 12, "{same} of 1000 places alike");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_size_and_key_is_a_bijection(len in 1usize..20_000, key: u64) {
            prop_assert!(is_permutation(&all(len, key)));
        }

        /// Of a set nobody could list, no rank sees what another sees, and none sees anything twice.
        #[test]
        fn no_sample_twice_over_ranks(len in 1usize << 33..1 << 50, world in 1usize..9, seed: u64, epoch in 0u64..99) {
            let indices = FeistelSampler::new(len).indices(Order { seed, epoch }).unwrap();
            let mut seen = HashSet::new();
            for rank in 0..world {
                let mine = indices.of_rank(Share::new(rank, world).unwrap(), Remainder::Repeat);
                for index in mine.take(200) {
                    prop_assert!(index < len && seen.insert(index));
                }
            }
        }

        #[test]
        fn small_sets_are_dealt_out_whole(len in 1usize..3000, world in 1usize..9, seed: u64) {
            let indices = FeistelSampler::new(len).indices(Order { seed, epoch: 1 }).unwrap();
            let mut dealt: Vec<usize> = (0..world)
                .flat_map(|rank| indices.of_rank(Share::new(rank, world).unwrap(), Remainder::Uneven))
                .collect();
            dealt.sort_unstable();
            prop_assert_eq!(dealt, (0..len).collect::<Vec<_>>());
        }
    }
}
