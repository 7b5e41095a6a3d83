//! Drawing samples by weight, with PyTorch's exact draws.

use std::sync::Arc;

use super::{Indices, Order, Sampler, SamplerError};
use crate::bridge;

/// Samples drawn with a probability in proportion to their weight: draw for draw those of PyTorch's
/// `WeightedRandomSampler(weights, samples, replacement, generator=torch.Generator().manual_seed(seed + epoch))`.
///
/// The draws are one order for all ranks, of which each takes its part as of any other order: so together the ranks draw
/// what one process would. (PyTorch has no distributed form of it.) Weights need not sum to 1.
///
/// ```no_run
/// use ddp_runtime::data::{DataLoader, WeightedSampler};
///
/// # fn demo(labels: &[usize], data: Vec<f32>) -> Result<(), Box<dyn std::error::Error>> {
/// // Each class as often as any other, however many samples it has.
/// let mut counts = [0_u32; 10];
/// labels.iter().for_each(|&label| counts[label] += 1);
/// let weights: Vec<f64> = labels.iter().map(|&label| 1.0 / f64::from(counts[label])).collect();
/// let sampler = WeightedSampler::with_replacement(weights, labels.len())?;
/// let loader = DataLoader::builder(data).sampler(sampler).batch_size(64).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedSampler {
    weights: Arc<[f64]>,
    samples: usize,
    replacement: bool,
}

impl WeightedSampler {
    /// Draws `samples` times; a sample may come any number of times.
    ///
    /// # Errors
    /// [`SamplerError::Weight`] for a weight that is negative or not finite, [`SamplerError::NoWeight`] if none is above 0,
    /// [`SamplerError::TooManyWeights`] from 2^24 on, which is PyTorch's limit, and [`SamplerError::NoSamples`] for no draws.
    pub fn with_replacement(
        weights: impl Into<Arc<[f64]>>,
        samples: usize,
    ) -> Result<Self, SamplerError> {
        Self { weights: weights.into(), samples, replacement: true }.checked()
    }

    /// Draws `samples` different samples.
    ///
    /// # Errors
    /// As [`with_replacement`](Self::with_replacement), and [`SamplerError::TooFewWeights`] if fewer than `samples` weights
    /// are above 0: PyTorch goes on with samples of weight 0 there.
    pub fn without_replacement(
        weights: impl Into<Arc<[f64]>>,
        samples: usize,
    ) -> Result<Self, SamplerError> {
        Self { weights: weights.into(), samples, replacement: false }.checked()
    }

    fn checked(self) -> Result<Self, SamplerError> {
        /// `torch.multinomial` numbers its categories in a float.
        const LIMIT: usize = 1 << 24;
        // Weights that are finite and whose sum is not mean nothing either; the largest is to blame.
        let finite = self.weights.iter().sum::<f64>().is_finite();
        let wrong = |weight: &f64| {
            !weight.is_finite() || *weight < 0.0 || (!finite && *weight >= f64::MAX / 1e8)
        };
        if let Some(index) = self.weights.iter().position(wrong) {
            return Err(SamplerError::Weight { index, weight: self.weights[index] });
        }
        let positive = self.weights.iter().filter(|&&weight| weight > 0.0).count();
        match (positive, self.samples) {
            (0, _) => Err(SamplerError::NoWeight),
            (_, 0) => Err(SamplerError::NoSamples),
            _ if self.weights.len() > LIMIT => {
                Err(SamplerError::TooManyWeights { weights: self.weights.len() })
            }
            _ if !self.replacement && self.samples > positive => {
                Err(SamplerError::TooFewWeights { samples: self.samples, positive })
            }
            _ => Ok(self),
        }
    }
}

impl Sampler for WeightedSampler {
    fn len(&self) -> usize {
        self.samples
    }

    fn indices(&self, order: Order) -> Result<Indices, SamplerError> {
        let Order { seed, epoch } = order;
        let drawn = bridge::multinomial(
            order.generator_seed(),
            &self.weights,
            self.samples,
            self.replacement,
        );
        let drawn = drawn.map_err(|source| SamplerError::Permutation { seed, epoch, source })?;
        Indices::listed(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::WeightedSampler;
    use crate::data::{Order, Sampler, SamplerError};

    fn drawn(sampler: &WeightedSampler, epoch: u64) -> Vec<usize> {
        sampler.indices(Order { seed: 3, epoch }).unwrap().iter().collect()
    }

    #[test]
    fn draws_follow_the_weights() {
        let sampler = WeightedSampler::with_replacement([1.0, 0.0, 3.0], 4000).unwrap();
        let draws = drawn(&sampler, 0);
        let count = |index| draws.iter().filter(|&&draw| draw == index).count();
        assert_eq!((draws.len(), count(1)), (4000, 0));
        // Mean 1000, standard deviation 27.
        assert!((850..1150).contains(&count(0)), "{}", count(0));
        assert_ne!(draws, drawn(&sampler, 1));
    }

    #[test]
    fn without_replacement_nothing_comes_twice_and_weight_0_never() {
        let sampler = WeightedSampler::without_replacement([1.0, 0.0, 2.0, 0.0, 1e-9], 3).unwrap();
        for epoch in 0..50 {
            let mut draws = drawn(&sampler, epoch);
            draws.sort_unstable();
            assert_eq!(draws, [0, 2, 4]);
        }
    }

    #[test]
    fn weights_that_mean_nothing_are_refused() {
        let with = |weights: &[f64]| WeightedSampler::with_replacement(weights, 2).unwrap_err();
        assert!(matches!(with(&[1.0, -1.0]), SamplerError::Weight { index: 1, .. }));
        assert!(matches!(with(&[f64::NAN]), SamplerError::Weight { index: 0, .. }));
        assert!(matches!(with(&[f64::INFINITY]), SamplerError::Weight { .. }));
        assert!(matches!(with(&[1.0, f64::MAX, f64::MAX]), SamplerError::Weight { index: 1, .. }));
        assert!(matches!(with(&[0.0, 0.0]), SamplerError::NoWeight));
        assert!(matches!(with(&[]), SamplerError::NoWeight));
        let none = WeightedSampler::with_replacement([1.0], 0).unwrap_err();
        assert!(matches!(none, SamplerError::NoSamples));
        let few = WeightedSampler::without_replacement([1.0, 0.0, 1.0], 3).unwrap_err();
        assert!(matches!(few, SamplerError::TooFewWeights { samples: 3, positive: 2 }));
        let many = WeightedSampler::with_replacement(vec![1.0; (1 << 24) + 1], 1).unwrap_err();
        assert!(matches!(many, SamplerError::TooManyWeights { .. }));
    }
}
