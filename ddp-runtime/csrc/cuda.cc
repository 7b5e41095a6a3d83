// What the GPU transport needs of libtorch's CUDA half, without linking it: c10's device guard reaches it where it is loaded.
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "error.h"

using ddp::guarded;

namespace {

c10::Device gpu(int ordinal) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal));
}

} // namespace

int ddp_cuda_set_device(int ordinal) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    guard.setDevice(gpu(ordinal));
  });
}

int ddp_cuda_current_stream(int ordinal, void** out) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    *out = guard.getStreamNativeHandle(guard.getStream(gpu(ordinal)));
  });
}
