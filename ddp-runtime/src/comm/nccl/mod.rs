//! NCCL: GPU tensors, one host or many, through cudarc.
//!
//! Rooms: `library` (finding and checking `libnccl.so.2`), `driver` (GPU, streams, events), `raw` (the communicator), `lane`
//! (the stream that collectives run on, what is under way there, and its failure), `monitor` (the thread that ends what
//! hangs), `dtype`, `setup` (from the launcher's environment to the first all-reduce), `fault` (all texts).
// The C interfaces of NCCL and of CUDA's driver can only be called through unsafe code; each call names what it relies on.
#![allow(unsafe_code)]

mod driver;
mod dtype;
mod fault;
mod identity;
mod lane;
mod library;
mod monitor;
mod probe;
mod raw;
mod setup;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::nccl::sys;
use tch::{Device, Tensor};

use super::{Communicator, ReduceOp, Work, bytes_of};
use crate::bridge::BridgeError;
use dtype::{BYTES, Reduction, reduction};
use fault::Fault;
use lane::{Lane, Ticket};
use monitor::Monitor;

pub(crate) use setup::{connect, open_cuda};

type Result<T> = std::result::Result<T, BridgeError>;

/// How long a wait of the host sleeps between two looks.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// How long leaving may take, once all ranks have said that they leave.
const LEAVING: Duration = Duration::from_secs(30);

/// NCCL as a transport between ranks that each have a GPU.
pub(crate) struct Nccl {
    lane: Arc<Lane>,
    monitor: Monitor,
    device: Device,
    world_size: usize,
}

impl Nccl {
    /// The device whose tensors this carries.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The memory of a tensor that is to be carried: where it begins, and how many elements it has.
    fn memory(&self, tensor: &Tensor) -> Result<*mut c_void> {
        let unsupported = |what, cure| Err(Fault::Unsupported { what, cure }.into());
        if tensor.device() != self.device {
            let what =
                format!("a tensor is on {:?}, this rank on {:?}", tensor.device(), self.device);
            return unsupported(
                what,
                "move it with `to_device`, or make it with the scope's device",
            );
        }
        if !tensor.is_contiguous() {
            return unsupported(
                "a tensor is not contiguous".to_owned(),
                "take `contiguous()` of it",
            );
        }
        Ok(tensor.data_ptr())
    }

    fn broadcast_each(&self, tensors: &[&Tensor], root: usize) -> Result<Box<dyn Work>> {
        let parts = tensors
            .iter()
            .map(|tensor| Ok((self.memory(tensor)?, bytes_of(tensor))))
            .collect::<Result<Vec<_>>>()?;
        let root =
            i32::try_from(root).map_err(|error| BridgeError::of_this_rank(error.to_string()))?;
        let kept = tensors.iter().map(|tensor| tensor.shallow_clone()).collect();
        let ticket = self.lane.issue("ncclBroadcast", kept, |comm, stream| {
            raw::each_in_one_group(&parts, |&(data, bytes)| {
                // SAFETY: as in `all_reduce`, in bytes.
                unsafe { sys::ncclBroadcast(data, data, bytes, BYTES, root, comm, stream) }
            })
        })?;
        Ok(self.work(ticket))
    }

    fn work(&self, ticket: Ticket) -> Box<dyn Work> {
        Box::new(NcclWork { lane: Arc::clone(&self.lane), ticket })
    }
}

impl Communicator for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn reaches_gpus(&self) -> bool {
        true
    }

    fn device(&self) -> Device {
        self.device
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>> {
        let data = self.memory(tensor)?;
        let Reduction { kind, per_element, op } = reduction(tensor.kind(), op)?;
        let count = tensor.numel() * per_element;
        let kept = vec![tensor.shallow_clone()];
        let ticket = self.lane.issue("ncclAllReduce", kept, |comm, stream| {
            // SAFETY: `data` spans `count` elements of that kind; the lane keeps the tensor until they have been read and
            // written, and has ordered the stream behind whatever writes them.
            unsafe { sys::ncclAllReduce(data, data, count, kind, op, comm, stream) }
        })?;
        Ok(self.work(ticket))
    }

    fn averages(&self, _: &Tensor) -> bool {
        true
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>> {
        self.broadcast_each(&[tensor], root)
    }

    fn broadcast_all(&self, tensors: &[&Tensor], root: usize) -> Result<Option<Box<dyn Work>>> {
        self.broadcast_each(tensors, root).map(Some)
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>> {
        let (to, from) = (self.memory(output)?, self.memory(input)?);
        if output.numel() != input.numel() * self.world_size || output.kind() != input.kind() {
            let what = format!(
                "{} elements of {:?} from each of {} ranks do not fill {} of {:?}",
                input.numel(),
                input.kind(),
                self.world_size,
                output.numel(),
                output.kind()
            );
            return Err(Fault::Unsupported { what, cure: "make room for all ranks" }.into());
        }
        let bytes = bytes_of(input);
        let kept = vec![output.shallow_clone(), input.shallow_clone()];
        let ticket = self.lane.issue("ncclAllGather", kept, |comm, stream| {
            // SAFETY: as in `all_reduce`, in bytes; `to` spans the parts of all ranks.
            unsafe { sys::ncclAllGather(from, to, bytes, BYTES, comm, stream) }
        })?;
        Ok(self.work(ticket))
    }

    fn abort(&self) {
        self.lane.give_up(Fault::Aborted);
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // A scope that ends well drops this after all ranks have said that they leave. One that fails has aborted before.
        self.monitor.stop();
        self.lane.close(LEAVING);
    }
}

/// A collective under way.
struct NcclWork {
    lane: Arc<Lane>,
    ticket: Ticket,
}

impl Work for NcclWork {
    fn is_done(&self) -> Result<bool> {
        Ok(self.lane.is_done(&self.ticket)?)
    }

    fn wait(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        while !self.lane.is_done(&self.ticket)? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    fn hand_over(&self) -> Result<bool> {
        self.lane.hand_over(&self.ticket)?;
        Ok(true)
    }
}
