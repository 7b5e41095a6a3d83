//! The data plane: collectives on tensors, one file a transport.
//!
//! A [`Communicator`] issues operations in order and returns at once; a [`Work`] tells when one is done. Which transport
//! serves is decided once, in `group/rendezvous.rs`; where the ranks have GPUs there are two, and each tensor goes by its device. What the ranks say to each other about the work (headers, votes, failures) is
//! `control.rs`, never this.
mod by_device;
mod gloo;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(not(feature = "nccl"))]
#[path = "no_nccl.rs"]
mod nccl;
mod shm;
mod two_level;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use crate::bridge::BridgeError;

pub(crate) use by_device::ByDevice;
pub(crate) use gloo::Gloo;
pub(crate) use nccl::{Nccl, connect as connect_gpus, open_cuda};
pub(crate) use shm::{GradientMemory, Host, Shm};
pub(crate) use two_level::{Grid, TwoLevel};

/// How an all-reduce combines the ranks' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// The smallest, element by element.
    Min,
    /// The largest, element by element.
    Max,
    /// Their product.
    Product,
    /// Their mean, of floating-point and complex numbers. NCCL divides as it adds; elsewhere the sum is divided.
    Avg,
}

/// An operation under way. Its tensors stay alive until it is dropped.
pub(crate) trait Work: Send {
    /// Whether it has finished; an error when it failed.
    fn is_done(&self) -> Result<bool, BridgeError>;
    /// As `is_done`, after waiting at most this long.
    fn wait(&self, limit: Duration) -> Result<bool, BridgeError>;
    /// Makes what this thread does next on the device come after it, without waiting, where the device can do that: then
    /// true. A failure that comes later is told by the next operation.
    fn hand_over(&self) -> Result<bool, BridgeError> {
        Ok(false)
    }
}

/// A transport between all ranks of the group. All ranks issue the same operations in the same order.
pub(crate) trait Communicator: Send {
    /// What it is called.
    fn name(&self) -> &'static str;
    /// Whether it carries what lies on GPUs.
    fn reaches_gpus(&self) -> bool {
        false
    }
    /// Where what it serves lies, beside tensors of the host.
    fn device(&self) -> Device {
        Device::Cpu
    }
    /// Combines a contiguous tensor over all ranks, in place.
    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, BridgeError>;
    /// Sums over all ranks, in place, this rank's contiguous tensor of floating-point numbers times `scale`, which need not be
    /// the others'.
    fn sum_scaled(&self, tensor: &Tensor, scale: f64) -> Result<Box<dyn Work>, BridgeError> {
        if scale != 1.0 {
            let scaled = tensor.shallow_clone().f_mul_scalar_(scale);
            let _ = scaled.map_err(|error| BridgeError::new(error.to_string()))?;
        }
        self.all_reduce(tensor, ReduceOp::Sum)
    }
    /// Whether [`ReduceOp::Avg`] gives the mean of such a tensor; otherwise it gives the sum.
    fn averages(&self, _tensor: &Tensor) -> bool {
        false
    }
    /// Copies `root`'s contiguous tensor over everyone else's.
    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>, BridgeError>;
    /// As [`broadcast`](Self::broadcast), for several tensors of one device in one launch, where the transport can do that.
    fn broadcast_all(
        &self,
        _tensors: &[&Tensor],
        _root: usize,
    ) -> Result<Option<Box<dyn Work>>, BridgeError> {
        Ok(None)
    }
    /// Fills `output` (contiguous, world size times as large) with the inputs of rank 0, 1, ...
    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>, BridgeError>;
    /// A flat CPU tensor of zeros that this transport reduces best, if there is such a thing.
    fn allocate(&self, _elements: usize, _kind: Kind) -> Result<Option<Tensor>, BridgeError> {
        Ok(None)
    }
    /// Memory in which a backward can make large gradients on the CPU, to be reduced where they lie. All ranks have it, or none.
    fn gradient_memory(&self) -> Option<Arc<GradientMemory>> {
        None
    }
    /// Buckets have been laid out anew, on all ranks: memory of the old ones is given back when nobody holds it any more.
    fn trim(&self) {}
    /// Carries on what is under way, without waiting: for transports that have no thread of their own.
    fn progress(&self) -> Result<(), BridgeError> {
        Ok(())
    }
    /// Ends what is under way on this rank: it will not go on with the others.
    fn abort(&self) {}
}

/// The bytes that a dense tensor's elements take.
fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// What the works of a transport share.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks whether an operation has ended, first without waiting, then until the limit; false then. `look` waits no longer than it
/// is told.
fn wait_within(
    limit: Duration,
    mut look: impl FnMut(Duration) -> Result<bool, BridgeError>,
) -> Result<bool, BridgeError> {
    let deadline = Instant::now() + limit;
    let mut left = Duration::ZERO;
    while !look(left)? {
        left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
    }
    Ok(true)
}
