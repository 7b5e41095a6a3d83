//! CPU constants stay, and constants are out of reach.
//! has: const DEVICE: Device = Device::Cuda(0);
//! has: store(nn::VarStore::new(DEVICE))
//! has: Tensor::randperm(n, kind::INT64_CPU)

#[distributed]
fn train() -> Result<()> {
    const DEVICE: Device = Device::Cuda(0);
    let vs = nn::VarStore::new(DEVICE);
    let index = Tensor::randperm(n, kind::INT64_CPU);
    Ok(())
}
