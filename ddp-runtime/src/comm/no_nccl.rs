//! What stands in for NCCL in a build without the feature `nccl`: nothing, and an error where it is asked for.
use ddp_env::Topology;
use tch::{Device, Tensor};

use super::{Communicator, ReduceOp, Work};
use crate::bridge::BridgeError;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::options::{Backend, Options};
use crate::watch::Watch;

type Started = std::result::Result<Box<dyn Work>, BridgeError>;

/// Never made.
pub(crate) enum Nccl {}

impl Nccl {
    pub(crate) fn device(&self) -> Device {
        match *self {}
    }
}

impl Communicator for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn all_reduce(&self, _: &Tensor, _: ReduceOp) -> Started {
        match *self {}
    }

    fn broadcast(&self, _: &Tensor, _: usize) -> Started {
        match *self {}
    }

    fn all_gather(&self, _: &Tensor, _: &Tensor) -> Started {
        match *self {}
    }
}

/// There is nothing to load.
pub(crate) fn open_cuda() {}

/// No GPU is used; an error where they are asked for.
pub(crate) fn connect(
    _: &Control,
    _: &Watch,
    _: Topology,
    options: &Options,
) -> Result<Option<Nccl>> {
    match options.backend {
        Backend::Nccl => Err(Error::unsupported(
            "ddp-runtime is built without its feature `nccl`",
            "add it to the features of the dependency, or choose another backend",
        )),
        _ => Ok(None),
    }
}
