//! How large gradient buckets are where nobody has said so: as PyTorch's, or larger where the transport's latency is long.
//!
//! An all-reduce of `n` bytes takes about `latency + n / bandwidth`, so two sizes tell both. Large buckets wait for latencies
//! less often; small ones leave earlier, which hides more of them behind the backward, and are still in the caches when they are
//! summed.
use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::Group;
use crate::error::Result;
use crate::options::Options;

/// The largest size that is chosen: what is in it waits for its last gradient.
const MOST: usize = 64 << 20;
/// The smallest size that is chosen, and what is taken where nothing is measured: PyTorch's. Smaller ones gained nothing where the
/// latency would have allowed them (docs/notes.md).
const LEAST: usize = 25 << 20;
/// What the latency may be of a bucket's time.
const SHARE: f64 = 0.05;

const MEASURING: &str = "measuring the transport";

/// Bytes, rounds before the measured ones, and those.
type Plan = (usize, u32, u32);
/// Over Gloo a round of the small size takes about as long as one of the large: a millisecond on a host, where two ranks have a core
/// each.
const SMALL: Plan = (4 << 10, 2, 4);
const LARGE: Plan = (1 << 20, 1, 3);

/// How long an all-reduce of so many bytes takes.
#[derive(Clone, Copy, Debug)]
struct Sample {
    bytes: usize,
    seconds: f64,
}

/// The smallest power of two at which the latency is at most its share of an all-reduce, within the limits.
fn fitting(small: Sample, large: Sample) -> usize {
    let per_byte = (large.seconds - small.seconds) / (large.bytes - small.bytes) as f64;
    if per_byte <= 0.0 {
        // All of it is latency.
        return MOST;
    }
    let latency = (small.seconds - small.bytes as f64 * per_byte).max(0.0);
    let bytes = latency / per_byte * (1.0 - SHARE) / SHARE;
    // A cast of a float stays within the integer's range.
    (bytes as usize).min(MOST).next_power_of_two().clamp(LEAST, MOST)
}

impl Group {
    /// The size of gradient buckets, the same on all ranks: what the options say, or what fits the transport. All ranks have the same
    /// options.
    pub(crate) fn bucket_bytes(&mut self, options: &Options) -> Result<usize> {
        if let Some(bytes) = options.bucket_bytes {
            return Ok(bytes);
        }
        // Whether gradients lie on GPUs is not known yet, and there latencies are hidden by streams.
        if self.data.reaches_gpus() {
            return Ok(LEAST);
        }
        let own = fitting(self.sample(SMALL)?, self.sample(LARGE)?);
        // Buckets will have other sizes than what was measured.
        self.data.trim();
        let all = self.control.gather_words(&self.watch, &[own as i64])?;
        // Whatever disturbed a rank has made latencies longer, not shorter: the largest is the safe one.
        let largest = all.iter().map(|words| words[0]).max().unwrap_or(own as i64);
        Ok(usize::try_from(largest).unwrap_or(own))
    }

    /// The shortest of a few all-reduces: what is longer was disturbed.
    fn sample(&self, (bytes, warm_up, rounds): Plan) -> Result<Sample> {
        let elements = bytes / Kind::Float.elt_size_in_bytes();
        let tensor = self.allocate(elements, Kind::Float, Device::Cpu)?;
        for _ in 0..warm_up {
            self.time(&tensor)?;
        }
        let mut seconds = f64::INFINITY;
        for _ in 0..rounds {
            seconds = seconds.min(self.time(&tensor)?);
        }
        Ok(Sample { bytes, seconds })
    }

    /// An all-reduce, in seconds. It is in no timeline: it belongs to no step.
    fn time(&self, tensor: &Tensor) -> Result<f64> {
        let start = Instant::now();
        let work = self.data.sum_scaled(tensor, 1.0);
        let work = work.map_err(|error| self.watch.explain(MEASURING, &error))?;
        self.watch.wait(work.as_ref(), MEASURING)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MICRO: f64 = 1e-6;

    fn chosen(small: f64, large: f64) -> usize {
        let sample = |(bytes, ..): Plan, seconds| Sample { bytes, seconds };
        fitting(sample(SMALL, small), sample(LARGE, large))
    }

    #[test]
    fn what_was_measured_on_two_cores_gives_these_sizes() {
        // Two ranks over shared memory, four of them on the two cores, two over Gloo, four over Gloo.
        assert_eq!(chosen(1.86 * MICRO, 29.8 * MICRO), LEAST);
        assert_eq!(chosen(43.3 * MICRO, 189.0 * MICRO), LEAST);
        assert_eq!(chosen(642.0 * MICRO, 1673.0 * MICRO), LEAST);
        assert_eq!(chosen(2000.0 * MICRO, 3000.0 * MICRO), 64 << 20);
        assert_eq!(chosen(1000.0 * MICRO, 1800.0 * MICRO), 32 << 20);
        assert_eq!(chosen(6218.0 * MICRO, 5031.0 * MICRO), MOST);
    }

    #[test]
    fn clocks_that_stand_still_give_a_size_too() {
        assert_eq!(chosen(0.0, 0.0), MOST);
        assert_eq!(chosen(0.0, 1.0), LEAST);
    }

    proptest! {
        #[test]
        fn the_latency_is_a_small_part_of_what_is_chosen(
            latency in 1e-7_f64..1e-2,
            bandwidth in 1e7_f64..1e11,
        ) {
            let time = |bytes: usize| latency + bytes as f64 / bandwidth;
            let bytes = chosen(time(SMALL.0), time(LARGE.0));
            prop_assert!((LEAST..=MOST).contains(&bytes));
            prop_assert!(bytes == LEAST || bytes.is_power_of_two());
            let share = |bytes: usize| latency / time(bytes);
            prop_assert!(bytes == MOST || share(bytes) <= SHARE * 1.001);
            // Half of it would not do.
            prop_assert!(bytes == LEAST || bytes == MOST || share(bytes / 2) >= SHARE * 0.999);
        }

        #[test]
        fn a_longer_latency_never_makes_buckets_smaller(
            small in 0.0_f64..1e-2,
            more in 0.0_f64..1e-2,
            transfer in 1e-7_f64..1e-1,
        ) {
            prop_assert!(chosen(small, small + transfer) <= chosen(small + more, small + more + transfer));
        }

        #[test]
        fn any_times_give_a_size_within_the_limits(small in any::<f64>(), large in any::<f64>()) {
            prop_assert!((LEAST..=MOST).contains(&chosen(small, large)));
        }
    }
}
