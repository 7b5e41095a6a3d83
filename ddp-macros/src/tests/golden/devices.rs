#[distributed]
fn devices(gpu: Option<usize>) {
    const OTHER: Device = Device::Cuda(0);
    let device = if Cuda::is_available() { tch::Device::Cuda(0) } else { Device::Cpu };
    let chosen = gpu.map(Device::Cuda).unwrap_or_else(Device::cuda_if_available);
    let noise = Tensor::randn([64, 16], kind::FLOAT_CUDA);
    let index = Tensor::randperm(8, tch::kind::INT64_CUDA);
    let plain = Tensor::randperm(8, kind::INT64_CPU);
    match device {
        Device::Cuda(_) => {}
        _ => {}
    }
    if let Device::Cuda(i) = chosen {
        work(i);
    }
    let stores = vec![nn::VarStore::new(Device::Cuda(0))];
    assert!(matches!(device, Device::Cuda(0)), "{:?}", Device::Cuda(0));
    fn helper() -> Device {
        Device::Cuda(0)
    }
}
