//! Gloo, from libtorch: CPU tensors, one host or many.
use std::time::Duration;

use tch::Tensor;

use super::{Communicator, ReduceOp, Work};
use crate::bridge::{BridgeError, GlooGroup, GlooWork, TcpStore};

/// `c10d::ProcessGroupGloo` as a transport.
pub(crate) struct Gloo {
    group: GlooGroup,
}

impl Gloo {
    /// Connects all ranks under the key prefix `name`.
    pub(crate) fn connect(
        store: &TcpStore,
        name: &str,
        rank: usize,
        world_size: usize,
        address: &str,
        timeout: Duration,
    ) -> Result<Self, BridgeError> {
        Ok(Self { group: GlooGroup::connect(store, name, rank, world_size, address, timeout)? })
    }
}

impl Work for GlooWork {
    fn is_done(&self) -> Result<bool, BridgeError> {
        // A finished work may have failed: only a wait tells.
        if GlooWork::is_done(self)? { GlooWork::wait(self, Duration::ZERO) } else { Ok(false) }
    }

    fn wait(&self, limit: Duration) -> Result<bool, BridgeError> {
        GlooWork::wait(self, limit)
    }
}

impl Communicator for Gloo {
    fn name(&self) -> &'static str {
        "gloo"
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, BridgeError> {
        Ok(Box::new(self.group.all_reduce(tensor, op)?))
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>, BridgeError> {
        Ok(Box::new(self.group.broadcast(tensor, root)?))
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>, BridgeError> {
        Ok(Box::new(self.group.all_gather(output, input)?))
    }
}
