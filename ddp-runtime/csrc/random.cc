// libtorch's random number generators: their states, as bytes.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <mutex>

#include "error.h"
#include "state.h"

using ddp::guarded;

namespace {

at::Generator generator_of(int cuda_index) {
  const auto device = cuda_index < 0 ? at::Device(at::kCPU)
                                     : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_index));
  return at::globalContext().defaultGenerator(device);
}

} // namespace

int ddp_generator_state(
    int cuda_index,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context) {
  return guarded([&] {
    auto generator = generator_of(cuda_index);
    at::Tensor state;
    {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      state = generator.get_state().contiguous();
    }
    take(context, state.const_data_ptr<uint8_t>(), static_cast<size_t>(state.numel()));
  });
}

int ddp_generator_set_state(int cuda_index, const uint8_t* data, size_t length) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto state = at::empty({static_cast<int64_t>(length)}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(state.mutable_data_ptr<uint8_t>(), data, length);
    auto generator = generator_of(cuda_index);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  });
}
