//! Figures of an evaluation that all ranks share: each counts its own samples, and the counts are added before they are
//! divided.
//!
//! A mean of the ranks' means is the mean of all samples only where the ranks have equally many. These accumulators keep
//! numerator and denominator apart, so that with an [`EvalSampler`](crate::data::EvalSampler), which repeats no sample, the figure
//! does not depend on the number of ranks (p06 of the usual faults), up to the rounding of a sum in `f64`.
//!
//! ```
//! use ddp_runtime::metric::{Mean, Metric};
//!
//! let mut loss = Mean::new();
//! loss.update(0.5, 64); // the mean loss of a batch of 64
//! loss.update(0.2, 16);
//! assert!((loss.compute()? - 0.44).abs() < 1e-12); // all ranks call this, all get the same
//! # Ok::<(), ddp_runtime::Error>(())
//! ```
use tch::{Kind, Tensor};

use crate::control::Operation;
use crate::error::{During, Result};
use crate::session;

/// Something that is counted sample by sample and read once, over all ranks.
pub trait Metric {
    /// The figure over the samples of all ranks. All ranks must call it; all get the same.
    ///
    /// # Errors
    /// As a collective: [`Error::Mismatch`](crate::Error::Mismatch) when another rank is elsewhere,
    /// [`Error::Peer`](crate::Error::Peer) when one has failed.
    fn compute(&self) -> Result<f64>;

    /// Forgets all samples.
    fn reset(&mut self);
}

/// The ranks' numbers, combined in the order of the ranks, so that all get the same bits.
fn combined(own: f64, combine: fn(f64, f64) -> f64) -> Result<f64> {
    let Some(session) = session::current() else { return Ok(own) };
    let words = session.exchange(Operation::Vote, own.to_bits().cast_signed())?;
    let numbers = words.into_iter().map(|word| f64::from_bits(word.cast_unsigned()));
    Ok(numbers.reduce(combine).unwrap_or(own))
}

/// A mean over samples: of losses, of errors. Without samples it is not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// No samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `samples` samples with this mean: a loss with `Reduction::Mean`, and the size of its batch.
    pub fn update(&mut self, mean: f64, samples: i64) {
        if samples > 0 {
            self.sum += mean * samples as f64;
            self.count += samples as f64;
        }
    }

    /// Adds every element of `values`: a loss with `Reduction::None`.
    ///
    /// # Errors
    /// [`Error::Torch`](crate::Error::Torch) when they are no numbers.
    pub fn update_each(&mut self, values: &Tensor) -> Result<()> {
        let sum = values.f_sum(Kind::Double).and_then(f64::try_from);
        self.sum += sum.during("adding to a metric")?;
        self.count += values.numel() as f64;
        Ok(())
    }
}

impl Metric for Mean {
    fn compute(&self) -> Result<f64> {
        let add = |one, other| one + other;
        Ok(combined(self.sum, add)? / combined(self.count, add)?)
    }

    fn reset(&mut self) {
        *self = Self::new();
    }
}

/// The part of samples whose largest logit is that of their class, from 0 to 1. Without samples it is not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accuracy {
    right: Mean,
}

impl Accuracy {
    /// No samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: `logits` of shape `[samples, .., classes]`, and the number of each sample's class, of the shape without
    /// the last dimension.
    ///
    /// # Errors
    /// [`Error::Torch`](crate::Error::Torch) when the shapes do not fit.
    pub fn update(&mut self, logits: &Tensor, classes: &Tensor) -> Result<()> {
        let operation = "adding to an accuracy";
        let chosen = logits.f_argmax(-1, false).during(operation)?;
        if chosen.size() != classes.size() {
            return Err(crate::Error::torch(
                operation,
                format!(
                    "logits {:?} need classes {:?}, not {:?}",
                    logits.size(),
                    chosen.size(),
                    classes.size()
                ),
            ));
        }
        let right = chosen.f_eq_tensor(classes).during(operation)?;
        self.right.update_each(&right)
    }
}

impl Metric for Accuracy {
    fn compute(&self) -> Result<f64> {
        self.right.compute()
    }

    fn reset(&mut self) {
        self.right.reset();
    }
}

/// The largest value, or the smallest. Without samples it is an infinity.
#[derive(Clone, Copy, Debug)]
pub struct Extreme {
    choose: fn(f64, f64) -> f64,
    none: f64,
    value: f64,
}

impl Extreme {
    /// The largest; of nothing it is minus infinity.
    #[must_use]
    pub fn max() -> Self {
        Self { choose: f64::max, none: f64::NEG_INFINITY, value: f64::NEG_INFINITY }
    }

    /// The smallest; of nothing it is infinity.
    #[must_use]
    pub fn min() -> Self {
        Self { choose: f64::min, none: f64::INFINITY, value: f64::INFINITY }
    }

    /// Adds a value.
    pub fn update(&mut self, value: f64) {
        self.value = (self.choose)(self.value, value);
    }

    /// Adds every element of `values`.
    ///
    /// # Errors
    /// [`Error::Torch`](crate::Error::Torch) when they are no numbers.
    pub fn update_each(&mut self, values: &Tensor) -> Result<()> {
        if values.numel() == 0 {
            return Ok(());
        }
        let operation = "adding to a metric";
        let values = values.f_to_kind(Kind::Double).during(operation)?;
        for extreme in [values.f_max(), values.f_min()] {
            let value = extreme.and_then(f64::try_from).during(operation)?;
            self.update(value);
        }
        Ok(())
    }
}

impl Metric for Extreme {
    fn compute(&self) -> Result<f64> {
        combined(self.value, self.choose)
    }

    fn reset(&mut self) {
        self.value = self.none;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_over_samples_and_not_over_batches() {
        let mut mean = Mean::new();
        assert!(mean.compute().unwrap().is_nan());
        mean.update(1.0, 3);
        mean.update(9.0, 0);
        mean.update_each(&Tensor::from_slice(&[5.0f32])).unwrap();
        assert_eq!(mean.compute().unwrap(), 2.0);
        mean.reset();
        assert_eq!(mean, Mean::new());
    }

    #[test]
    fn an_accuracy_counts_what_is_right() {
        let mut accuracy = Accuracy::new();
        let logits = Tensor::from_slice2(&[[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]);
        accuracy.update(&logits, &Tensor::from_slice(&[1_i64, 1, 1])).unwrap();
        assert_eq!(accuracy.compute().unwrap(), 2.0 / 3.0);
        assert!(accuracy.update(&logits, &Tensor::from_slice(&[1_i64])).is_err());
    }

    #[test]
    fn extremes_of_nothing_are_infinite() {
        let (mut max, mut min) = (Extreme::max(), Extreme::min());
        assert_eq!(
            (max.compute().unwrap(), min.compute().unwrap()),
            (f64::NEG_INFINITY, f64::INFINITY)
        );
        let values = Tensor::from_slice(&[3_i64, -2]);
        max.update_each(&values).unwrap();
        min.update_each(&values).unwrap();
        max.update(1.0);
        assert_eq!((max.compute().unwrap(), min.compute().unwrap()), (3.0, -2.0));
    }
}
