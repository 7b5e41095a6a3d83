//! CUDA in the body.
//! has: if Cuda::is_available() { device(Device::Cuda(0)) } else { Device::Cpu }
//! has: Tensor::randn([64, 16], device_kind(kind::FLOAT_CUDA))

#[distributed]
fn train() -> Result<()> {
    let device = if Cuda::is_available() { Device::Cuda(0) } else { Device::Cpu };
    let noise = Tensor::randn([64, 16], kind::FLOAT_CUDA);
    Ok(())
}
