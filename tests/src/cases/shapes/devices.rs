//! Devices on a host without GPUs: what the program names stays, and what does not exist is libtorch's own error.
use anyhow::{Result, ensure};
use ddp_runtime::distributed;
use tch::data::Iter2;
use tch::{Cuda, Device, Kind, Tensor, kind, nn};

use super::one_process::{Batch, Model, Net, alike, data, follows, items};

const BATCH: i64 = 4;
/// A constant out of the attribute's reach.
const DEVICE: Device = Device::Cpu;

#[distributed]
fn cuda_if_there(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<Vec<Device>> {
    let device = if Cuda::is_available() { Device::Cuda(0) } else { Device::Cpu };
    let other = Device::cuda_if_available();
    let noise = match device {
        Device::Cuda(_) => Tensor::randn([4, 4], kind::FLOAT_CUDA),
        device => Tensor::randn([4, 4], (Kind::Float, device)),
    };
    let mut opt = Model::adam(vs)?;
    for (x, y) in Iter2::new(xs, ys, BATCH).to_device(device) {
        opt.backward_step(&net.loss(&x, &y));
    }
    Ok(vec![device, other, noise.device()])
}

/// Asks for a GPU that nobody has.
#[distributed]
fn cuda_at_any_price() -> Result<Tensor, tch::TchError> {
    Tensor::f_zeros([2], (Kind::Float, Device::Cuda(0)))
}

pub(super) fn s31_cuda_in_the_body(_: &[&str]) -> Result<()> {
    ensure!(!Cuda::is_available(), "this case is about hosts without a GPU");
    let batches = data(24);
    let model = Model::seeded();
    let devices = cuda_if_there(&model.vs, &model.net, &batches)?;
    ensure!(devices.iter().all(|device| *device == Device::Cpu), "{devices:?}");
    let joined = items(&batches, BATCH * ddp_runtime::world_size() as i64);
    let rounds: Vec<Vec<Batch>> = joined.into_iter().map(|item| vec![item]).collect();
    follows("cuda_if_available", &model.vs, &rounds)
}

/// libtorch refuses, on every rank, as it does in one process.
pub(super) fn s31_no_gpu(_: &[&str]) -> Result<()> {
    let plain = Tensor::f_zeros([2], (Kind::Float, Device::Cuda(0)));
    ensure!(plain.is_err(), "this case is about hosts without a GPU");
    let _ = cuda_at_any_price()?;
    Ok(())
}

#[distributed]
fn on_the_cpu((xs, ys): &Batch) -> Result<(nn::VarStore, Tensor)> {
    tch::manual_seed(7);
    let mut vs = nn::VarStore::new(DEVICE);
    let net = Net::new(&vs.root());
    vs.double();
    let mut opt = Model::adam(&vs)?;
    let order = Tensor::randperm(xs.size()[0], kind::INT64_CPU);
    for (x, y) in Iter2::new(xs, ys, BATCH).to_device(Device::Cpu) {
        opt.backward_step(&net.loss(&x, &y));
    }
    Ok((vs, order))
}

pub(super) fn s32_cpu_constants(_: &[&str]) -> Result<()> {
    let batches = data(24);
    let (vs, order) = on_the_cpu(&batches)?;
    ensure!(vs.device() == Device::Cpu && order.device() == Device::Cpu, "a constant has moved");
    // The weights are not equal yet where the order is drawn, so the ranks draw the same one.
    alike("order", &Vec::<f64>::try_from(order.to_kind(Kind::Double))?)?;
    let joined = items(&batches, BATCH * ddp_runtime::world_size() as i64);
    let rounds: Vec<Vec<Batch>> = joined.into_iter().map(|item| vec![item]).collect();
    follows("on the CPU", &vs, &rounds)
}
