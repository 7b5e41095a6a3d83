//! Communication hooks: another way to average a bucket of gradients than an all-reduce, as PyTorch's `register_comm_hook`.
//!
//! - `compress`: 16-bit floats on the wire;
//! - `power_sgd`: low-rank approximations on the wire.
mod compress;
mod power_sgd;

use std::fmt;

use tch::Tensor;

use crate::comm::ReduceOp;
use crate::error::Result;
use crate::group::{Group, Started, check_mean};

pub use compress::{Bf16Compress, Fp16Compress};
pub use power_sgd::PowerSgd;

const AVERAGING: &str = "averaging gradients in a communication hook";

/// How a bucket of gradients is averaged, in place of an all-reduce: registered by
/// [`Scope::register_comm_hook`](crate::Scope::register_comm_hook).
///
/// What a hook finds in a bucket is this rank's gradients *divided by the world size*: where PyTorch's hooks divide by it, these
/// add. What it leaves there is the mean over all ranks, and must have the same bits on all of them.
///
/// [`start`](Self::start) is called as soon as a bucket's gradients are complete, while the backward goes on, bucket by bucket in
/// an order that all ranks share; it starts what it can and returns. [`finish`](Self::finish) is called when the backward is over,
/// for each bucket in the same order. All ranks must reduce the same tensors in the same order.
///
/// A rank that stands aside ([`Uneven::Join`](crate::Uneven::Join)) takes part with gradients of zero.
pub trait CommHook: Send {
    /// What the hook is and how it is set: the same text on all ranks.
    fn name(&self) -> String;

    /// Starts to average a bucket.
    ///
    /// # Errors
    /// Those of `comm`, or the hook's own; the backward ends with them.
    fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()>;

    /// Leaves the mean in the bucket.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    fn finish(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()>;
}

/// Gradients that are averaged together.
#[derive(Debug)]
pub struct GradBucket {
    /// The position among the buckets of this backward, from 0.
    pub index: usize,
    /// All gradients, one after another, in one flat contiguous tensor. Gaps for alignment hold what the last backward left
    /// there.
    pub flat: Tensor,
    /// The gradients one by one: views of `flat`.
    pub gradients: Vec<Gradient>,
}

/// The gradient of one parameter.
#[derive(Debug)]
pub struct Gradient {
    /// The parameter's number, the same on all ranks and in every backward.
    pub parameter: u32,
    /// A view of the bucket with the parameter's shape.
    pub value: Tensor,
}

/// The ranks, for a hook.
pub struct HookComm<'a> {
    group: &'a Group,
}

/// A reduction under way. Its tensor stays alive until it is dropped.
pub struct Reduction {
    started: Started,
    tensor: Tensor,
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reduction").field("tensor", &self.tensor).finish_non_exhaustive()
    }
}

impl fmt::Debug for HookComm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookComm").field("rank", &self.rank()).finish_non_exhaustive()
    }
}

impl<'a> HookComm<'a> {
    pub(crate) fn new(group: &'a Group) -> Self {
        Self { group }
    }

    /// This process's position among all, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.topology().rank
    }

    /// The number of processes.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.group.topology().world_size
    }

    /// Starts to combine a contiguous tensor over all ranks, in place.
    ///
    /// # Errors
    /// When the transport cannot, or another rank has failed.
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Reduction> {
        check_mean(op, tensor.kind(), AVERAGING)?;
        let started = self.group.start_all_reduce(tensor, op, AVERAGING)?;
        Ok(Reduction { started, tensor: tensor.shallow_clone() })
    }

    /// Waits until a reduction is done, and returns its tensor.
    ///
    /// # Errors
    /// When another rank has failed, or the time limit is reached.
    pub fn wait(&self, reduction: Reduction) -> Result<Tensor> {
        let Reduction { started, tensor } = reduction;
        self.group.finish_all_reduce(&started, &tensor, AVERAGING)?;
        Ok(tensor)
    }
}
