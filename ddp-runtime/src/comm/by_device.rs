//! Two transports side by side, where the ranks have GPUs: one for what lies on them, one for what lies on the host.
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::{Communicator, GradientMemory, Nccl, ReduceOp, Work};
use crate::bridge::BridgeError;

type Started = Result<Box<dyn Work>, BridgeError>;

/// As PyTorch's `cpu:gloo,cuda:nccl`: each tensor goes by its device.
pub(crate) struct ByDevice {
    gpu: Nccl,
    cpu: Box<dyn Communicator>,
}

impl ByDevice {
    /// Both are connected.
    pub(crate) fn new(gpu: Nccl, cpu: Box<dyn Communicator>) -> Self {
        Self { gpu, cpu }
    }

    fn of(&self, tensor: &Tensor) -> &dyn Communicator {
        // A tensor on any other device than these two is refused by the GPU's transport, with both named.
        if tensor.device() == Device::Cpu { self.cpu.as_ref() } else { &self.gpu }
    }
}

impl Communicator for ByDevice {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn reaches_gpus(&self) -> bool {
        true
    }

    fn device(&self) -> Device {
        self.gpu.device()
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Started {
        self.of(tensor).all_reduce(tensor, op)
    }

    fn sum_scaled(&self, tensor: &Tensor, scale: f64) -> Started {
        self.of(tensor).sum_scaled(tensor, scale)
    }

    fn averages(&self, tensor: &Tensor) -> bool {
        self.of(tensor).averages(tensor)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Started {
        self.of(tensor).broadcast(tensor, root)
    }

    fn broadcast_all(
        &self,
        tensors: &[&Tensor],
        root: usize,
    ) -> Result<Option<Box<dyn Work>>, BridgeError> {
        match tensors.first() {
            Some(first) => self.of(first).broadcast_all(tensors, root),
            None => Ok(None),
        }
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Started {
        self.of(output).all_gather(output, input)
    }

    fn allocate(&self, elements: usize, kind: Kind) -> Result<Option<Tensor>, BridgeError> {
        // Asked for memory of the host only.
        self.cpu.allocate(elements, kind)
    }

    fn gradient_memory(&self) -> Option<Arc<GradientMemory>> {
        self.cpu.gradient_memory()
    }

    fn trim(&self) {
        self.cpu.trim();
    }

    fn progress(&self) -> Result<(), BridgeError> {
        self.cpu.progress()
    }

    fn abort(&self) {
        self.gpu.abort();
        self.cpu.abort();
    }
}
