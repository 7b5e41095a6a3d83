//! Which device this rank computes on.
use tch::{Cuda, Device};

use crate::comm::open_cuda;
use crate::world;

/// The device of this rank: the GPU with its local rank's number where CUDA is there, else the CPU.
///
/// A launcher that shows each rank only one GPU makes that one number 0 for all.
#[must_use]
pub fn device() -> Device {
    if world::world_size() > 1 {
        open_cuda();
    }
    if !Cuda::is_available() {
        return Device::Cpu;
    }
    let visible = usize::try_from(Cuda::device_count()).unwrap_or(0);
    Device::Cuda(ordinal(world::local_rank(), visible))
}

/// The GPU of a local rank among those it sees.
pub(crate) fn ordinal(local_rank: usize, visible: usize) -> usize {
    if visible <= 1 { 0 } else { local_rank }
}

/// The device of this rank in place of one that the program names: any GPU becomes the rank's, the CPU stays.
///
/// With one rank every device stays what it is.
#[must_use]
pub fn rank_device(named: Device) -> Device {
    match named {
        Device::Cuda(_) if world::world_size() > 1 => in_place_of(named, device()),
        other => other,
    }
}

/// What a rank that computes on `own` takes for a GPU that the program names.
fn in_place_of(named: Device, own: Device) -> Device {
    match own {
        // The program asked for a GPU: without one, libtorch's own error says so.
        Device::Cpu => named,
        own => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p07_each_rank_of_a_host_has_a_gpu_of_its_own() {
        assert_eq!([0, 1, 2, 3].map(|local_rank| ordinal(local_rank, 4)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_rank_that_sees_one_gpu_takes_it() {
        assert_eq!((ordinal(3, 1), ordinal(0, 0)), (0, 0));
    }

    #[test]
    fn p07_a_gpu_that_is_named_becomes_the_ranks_own() {
        assert_eq!(in_place_of(Device::Cuda(0), Device::Cuda(3)), Device::Cuda(3));
        assert_eq!(in_place_of(Device::Cuda(0), Device::Cpu), Device::Cuda(0));
    }

    #[test]
    fn one_rank_keeps_its_devices() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(2), Device::Mps] {
            assert_eq!(rank_device(device), device);
        }
    }
}
