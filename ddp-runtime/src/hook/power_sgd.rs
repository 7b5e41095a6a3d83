//! Low-rank approximations of gradients on the wire.
//!
//! The algorithm is that of Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
//! optimization" (NeurIPS 2019), with the choices of PyTorch's `powerSGD_hook`: which gradients are compressed, when compression
//! starts, error feedback, warm start. It differs in three points that change no result: what is remembered of a gradient belongs
//! to its parameter and not to a bucket; gradients come divided by the world size; what is sent whole has no error to feed back.
//! A column of zeros stays one, where PyTorch's default makes it NaN.
use std::collections::{HashMap, VecDeque};

use tch::{Kind, Tensor};

use super::{AVERAGING, CommHook, GradBucket, HookComm, Reduction};
use crate::comm::ReduceOp;
use crate::error::{During, Result};

/// The PowerSGD hook, and its state.
///
/// A gradient of shape `[n, ..]` is taken as a matrix `n x m`, and sent as the factors `P` (`n x rank`) and `Q` (`m x rank`) of an
/// approximation, in two reductions after another. What the approximation leaves out is added to the next gradient.
#[derive(Debug)]
pub struct PowerSgd {
    rank: i64,
    start: u64,
    min_compression_rate: f64,
    seed: u64,
    backwards: u64,
    memory: HashMap<u32, Memory>,
    under_way: VecDeque<Bucket>,
}

/// What is remembered of a parameter.
#[derive(Debug)]
struct Memory {
    /// What the last approximation left out, `n x m`.
    error: Tensor,
    /// The last `Q`, `m x rank`.
    q: Tensor,
}

/// A bucket under way.
#[derive(Debug)]
enum Bucket {
    /// Before compression starts.
    Whole(Reduction),
    Compressed {
        whole: Option<Reduction>,
        ps: Option<Reduction>,
    },
}

impl PowerSgd {
    /// Approximations of the given rank (at least 1), from the 1001st backward on. Until then gradients are sent whole, since
    /// training is most sensitive at its start.
    #[must_use]
    pub fn new(rank: u32) -> Self {
        Self {
            rank: i64::from(rank.max(1)),
            start: 1000,
            min_compression_rate: 2.0,
            seed: 0,
            backwards: 0,
            memory: HashMap::new(),
            under_way: VecDeque::new(),
        }
    }

    /// Compresses after so many averaged backwards.
    #[must_use]
    pub fn start_after(mut self, backwards: u64) -> Self {
        self.start = backwards;
        self
    }

    /// Compresses only what becomes smaller than by this factor: `(n + m) * rank * rate < n * m`. 2 unless it is set.
    #[must_use]
    pub fn min_compression_rate(mut self, rate: f64) -> Self {
        self.min_compression_rate = rate;
        self
    }

    /// The seed of the first `Q`s, the same on all ranks.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn compresses(&self, gradient: &Tensor) -> bool {
        let size = gradient.size();
        let Some(&n) = size.first().filter(|n| **n > 0) else { return false };
        let m = gradient.numel() as i64 / n;
        let rank = self.rank.min(n).min(m);
        gradient.is_floating_point()
            && (((n + m) * rank) as f64) * self.min_compression_rate < (n * m) as f64
    }

    /// The gradient as a matrix, with the error of the last approximation, and the `Q` to begin with.
    fn prepare(&mut self, parameter: u32, gradient: &Tensor) -> Result<(Tensor, Tensor)> {
        let n = gradient.size()[0];
        let matrix = gradient.f_reshape([n, -1]).during(AVERAGING)?;
        let m = matrix.size()[1];
        let q = match self.memory.get(&parameter) {
            Some(memory) => memory.q.shallow_clone(),
            None => {
                let rank = self.rank.min(n).min(m);
                let values = normal(self.seed, parameter, (m * rank) as usize);
                Tensor::from_slice(&values)
                    .f_view([m, rank])
                    .and_then(|q| q.f_to_device(matrix.device()))
                    .and_then(|q| q.f_to_kind(matrix.kind()))
                    .during(AVERAGING)?
            }
        };
        let matrix = match self.memory.get(&parameter) {
            Some(memory) => matrix.f_add(&memory.error).during(AVERAGING)?,
            None => matrix.f_detach_copy().during(AVERAGING)?,
        };
        Ok((matrix, orthogonal(q)?))
    }
}

/// The values of all these tensors, one after another.
fn joined(tensors: &[Tensor]) -> Result<Option<Tensor>> {
    if tensors.is_empty() {
        return Ok(None);
    }
    let flat: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| tensor.f_reshape([-1]).during(AVERAGING))
        .collect::<Result<_>>()?;
    Tensor::f_cat(&flat, 0).during(AVERAGING).map(Some)
}

/// Cuts a flat tensor into such as have these sizes.
fn cut(flat: &Tensor, sizes: impl Iterator<Item = Vec<i64>>) -> Result<Vec<Tensor>> {
    let mut start = 0;
    sizes
        .map(|size| {
            let length: i64 = size.iter().product();
            let part = flat.f_narrow(0, start, length).and_then(|part| part.f_reshape(size));
            start += length;
            part.during(AVERAGING)
        })
        .collect()
}

/// Orthonormal columns that span those of a matrix: Gram and Schmidt's way up to two of them, as PyTorch's hook, QR above.
fn orthogonal(matrix: Tensor) -> Result<Tensor> {
    let columns = matrix.size()[1];
    if columns > 2 && matches!(matrix.kind(), Kind::Float | Kind::Double) {
        return Tensor::f_linalg_qr(&matrix, "reduced").during(AVERAGING).map(|(q, _)| q);
    }
    let mut found: Vec<Tensor> = Vec::new();
    for index in 0..columns {
        let mut column = matrix.f_narrow(1, index, 1).during(AVERAGING)?;
        for before in &found {
            let along = (before * &column).f_sum(column.kind()).during(AVERAGING)?;
            column -= before * along;
        }
        let norm = column.f_norm().during(AVERAGING)?;
        // A column of zeros has no direction.
        let norm = norm.f_where_self(&norm.f_gt(0.0).during(AVERAGING)?, &norm.ones_like());
        found.push(column / norm.during(AVERAGING)?);
    }
    Tensor::f_cat(&found, 1).during(AVERAGING)
}

/// Normally distributed numbers that depend on nothing but the seed and the parameter: SplitMix64 (Steele, Lea and Flood 2014) for
/// the bits, the polar form of Box and Muller for the shape.
fn normal(seed: u64, parameter: u32, count: usize) -> Vec<f64> {
    let mut state = seed ^ (u64::from(parameter) << 32);
    let mut uniform = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        // 53 bits, above 0.
        ((z >> 11) + 1) as f64 / (1_u64 << 53) as f64
    };
    (0..count)
        .map(|_| {
            let (radius, angle) = (uniform(), uniform());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        })
        .collect()
}

impl CommHook for PowerSgd {
    fn name(&self) -> String {
        let Self { rank, start, min_compression_rate, seed, .. } = self;
        format!("powersgd rank {rank} start {start} rate {min_compression_rate} seed {seed}")
    }

    fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
        if bucket.index == 0 {
            self.backwards += 1;
            // What a backward that failed has left.
            self.under_way.clear();
        }
        if self.backwards <= self.start {
            let reduction = comm.all_reduce(&bucket.flat, ReduceOp::Sum)?;
            self.under_way.push_back(Bucket::Whole(reduction));
            return Ok(());
        }
        let (mut whole, mut ps) = (Vec::new(), Vec::new());
        for gradient in &bucket.gradients {
            if !self.compresses(&gradient.value) {
                whole.push(gradient.value.shallow_clone());
                continue;
            }
            let (matrix, q) = self.prepare(gradient.parameter, &gradient.value)?;
            ps.push(matrix.f_matmul(&q).during(AVERAGING)?);
            self.memory.insert(gradient.parameter, Memory { error: matrix, q });
        }
        let reduce = |tensors: &[Tensor]| {
            joined(tensors)?.map(|flat| comm.all_reduce(&flat, ReduceOp::Sum)).transpose()
        };
        let (whole, ps) = (reduce(&whole)?, reduce(&ps)?);
        self.under_way.push_back(Bucket::Compressed { whole, ps });
        Ok(())
    }

    fn finish(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
        let (whole, ps) = match self.under_way.pop_front() {
            Some(Bucket::Whole(reduction)) => return comm.wait(reduction).map(drop),
            Some(Bucket::Compressed { whole, ps }) => (whole, ps),
            None => return Ok(()),
        };
        let (compressed, sent_whole): (Vec<_>, Vec<_>) =
            bucket.gradients.iter().partition(|gradient| self.compresses(&gradient.value));
        if let Some(whole) = whole {
            let sums =
                cut(&comm.wait(whole)?, sent_whole.iter().map(|gradient| gradient.value.size()))?;
            for (gradient, sum) in sent_whole.iter().zip(&sums) {
                gradient.value.shallow_clone().f_copy_(sum).during(AVERAGING)?;
            }
        }
        let Some(ps) = ps else { return Ok(()) };
        // `start` left the matrix, with the last error, where the next error will be.
        let memory = |parameter| self.memory.get(&parameter);
        let sizes = compressed.iter().filter_map(|gradient| {
            let memory = memory(gradient.parameter)?;
            Some(vec![memory.error.size()[0], memory.q.size()[1]])
        });
        let ps = cut(&comm.wait(ps)?, sizes)?;
        let ps: Vec<Tensor> = ps.into_iter().map(orthogonal).collect::<Result<_>>()?;
        let mut qs = Vec::new();
        for (gradient, p) in compressed.iter().zip(&ps) {
            if let Some(memory) = memory(gradient.parameter) {
                qs.push(memory.error.f_tr().and_then(|m| m.f_matmul(p)).during(AVERAGING)?);
            }
        }
        let sizes: Vec<Vec<i64>> = qs.iter().map(Tensor::size).collect();
        let Some(flat) = joined(&qs)? else { return Ok(()) };
        let sums = comm.wait(comm.all_reduce(&flat, ReduceOp::Sum)?)?;
        let share = 1.0 / comm.world_size() as f64;
        for ((gradient, p), q) in compressed.iter().zip(&ps).zip(cut(&sums, sizes.into_iter())?) {
            let mean = p.f_matmul(&q.f_tr().during(AVERAGING)?).during(AVERAGING)?;
            let value = mean.f_reshape(gradient.value.size()).during(AVERAGING)?;
            gradient.value.shallow_clone().f_copy_(&value).during(AVERAGING)?;
            if let Some(memory) = self.memory.get_mut(&gradient.parameter) {
                // This rank's part of what is missing in the mean.
                memory.error -= mean * share;
                memory.q = q.f_detach_copy().during(AVERAGING)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonal_columns_are_orthonormal_and_zeros_stay() {
        for columns in [1, 2, 4] {
            let numbers = normal(3, 1, 7 * columns as usize);
            let q = orthogonal(Tensor::from_slice(&numbers).view([7, columns])).unwrap();
            let unit = Tensor::eye(columns, (Kind::Double, tch::Device::Cpu));
            let error = (q.tr().matmul(&q) - unit).abs().max().double_value(&[]);
            assert!(error < 1e-12, "{columns} columns: {error}");
        }
        let zeros = Tensor::zeros([5, 2], (Kind::Float, tch::Device::Cpu));
        assert!(orthogonal(zeros.copy()).unwrap().equal(&zeros));
    }

    #[test]
    fn the_numbers_are_normal_and_differ_between_parameters() {
        let numbers = Tensor::from_slice(&normal(0, 7, 20_000));
        assert!(numbers.mean(Kind::Double).double_value(&[]).abs() < 0.03);
        assert!((numbers.std(true).double_value(&[]) - 1.0).abs() < 0.03);
        assert_ne!(normal(0, 7, 4), normal(0, 8, 4));
        assert_eq!(normal(5, 7, 4), normal(5, 7, 4));
    }

    #[test]
    fn only_what_becomes_smaller_is_compressed() {
        let hook = PowerSgd::new(1);
        let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, tch::Device::Cpu));
        let answers = [&[64][..], &[3, 3], &[16, 16], &[8, 4, 3, 3], &[0, 4], &[]]
            .map(|size| hook.compresses(&zeros(size)));
        assert_eq!(answers, [false, false, true, true, false, false]);
    }
}
