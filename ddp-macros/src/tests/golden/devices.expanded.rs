fn devices(gpu: Option<usize>) {
    const OTHER: Device = Device::Cuda(0);
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("devices"),
    );
    let device = if Cuda::is_available() {
        ::ddp_runtime::__private::device(tch::Device::Cuda(0))
    } else {
        Device::Cpu
    };
    let chosen = gpu
        .map(|__ddp_index| ::ddp_runtime::__private::device(Device::Cuda(__ddp_index)))
        .unwrap_or_else(|| ::ddp_runtime::__private::device(
            Device::cuda_if_available(),
        ));
    let noise = Tensor::randn(
        [64, 16],
        ::ddp_runtime::__private::device_kind(kind::FLOAT_CUDA),
    );
    let index = Tensor::randperm(
        8,
        ::ddp_runtime::__private::device_kind(tch::kind::INT64_CUDA),
    );
    let plain = Tensor::randperm(8, kind::INT64_CPU);
    match device {
        Device::Cuda(_) => {}
        _ => {}
    }
    if let Device::Cuda(i) = chosen {
        work(i);
    }
    let stores = vec![
        ::ddp_runtime::__private::store(nn::VarStore::new(::ddp_runtime::__private::device(Device::Cuda(0))))
    ];
    assert!(
        matches!(device, Device::Cuda(0)), "{:?}",
        ::ddp_runtime::__private::device(Device::Cuda(0))
    );
    fn helper() -> Device {
        Device::Cuda(0)
    }
    __ddp_scope.leave(())
}
