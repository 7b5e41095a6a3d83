// What the reducer does to tensors: views of buckets, gradients moved into them, checksums, permutations.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "error.h"
#include "lend.h"

using ddp::guarded;

namespace {

at::Tensor& tensor_of(DdpTensor tensor) {
  return *static_cast<at::Tensor*>(tensor);
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.strides() == b.strides() && a.sizes() == b.sizes();
}

uint64_t mix(uint64_t hash, uint64_t word) {
  // The multiply-and-rotate step of the FNV family, on whole words.
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

} // namespace

int ddp_randperm(uint64_t seed, int64_t n, int64_t* out) {
  return guarded([&] {
    auto generator = at::detail::createCPUGenerator(seed);
    const auto order = at::randperm(n, generator, at::TensorOptions().dtype(at::kLong));
    if (n > 0) {
      std::memcpy(out, order.const_data_ptr<int64_t>(), static_cast<size_t>(n) * sizeof(int64_t));
    }
  });
}

int ddp_multinomial(
    uint64_t seed, const double* weights, int64_t count, int64_t samples, int replacement, int64_t* out) {
  return guarded([&] {
    auto generator = at::detail::createCPUGenerator(seed);
    // Read only, and not kept.
    const auto table = at::from_blob(const_cast<double*>(weights), {count}, at::TensorOptions().dtype(at::kDouble));
    const auto drawn = at::multinomial(table, samples, replacement != 0, generator);
    if (samples > 0) {
      std::memcpy(out, drawn.const_data_ptr<int64_t>(), static_cast<size_t>(samples) * sizeof(int64_t));
    }
  });
}

int ddp_view_like(DdpTensor flat, int64_t offset, DdpTensor like, DdpTensor* out) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto& base = tensor_of(flat);
    const auto& parameter = tensor_of(like);
    at::Tensor view = at::empty({0}, base.options());
    const auto start = base.storage_offset() + offset;
    view.set_(base.storage(), start, parameter.sizes(), ddp::gradient_strides(parameter));
    *out = new at::Tensor(std::move(view));
  });
}

int ddp_identity(DdpTensor tensor, uintptr_t* out) {
  return guarded([&] {
    *out = reinterpret_cast<uintptr_t>(tensor_of(tensor).unsafeGetTensorImpl());
  });
}

int ddp_view_use(DdpTensor parameter, DdpTensor view, int* held, int* is_gradient) {
  return guarded([&] {
    const auto& gradient = tensor_of(parameter).grad();
    const auto& target = tensor_of(view);
    const bool same = gradient.defined() && gradient.is_same(target);
    *is_gradient = same ? 1 : 0;
    *held = target.use_count() > (same ? 2 : 1) ? 1 : 0;
  });
}

int ddp_tensor_state(DdpTensor tensor, int64_t* holders, int64_t* version) {
  return guarded([&] {
    const auto& value = tensor_of(tensor);
    *holders = static_cast<int64_t>(value.use_count());
    *version = static_cast<int64_t>(value._version());
  });
}

int ddp_storage_uses(DdpTensor tensor, int64_t* out) {
  return guarded([&] { *out = static_cast<int64_t>(tensor_of(tensor).storage().use_count()); });
}

int ddp_data_alias(DdpTensor tensor, DdpTensor* out) {
  return guarded([&] { *out = new at::Tensor(tensor_of(tensor).variable_data()); });
}

int ddp_checksum(DdpTensor tensor, uint64_t* out) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto value = tensor_of(tensor).detach().to(at::kCPU).contiguous();
    const auto bytes = value.nbytes();
    const auto* data = static_cast<const char*>(value.const_data_ptr());
    uint64_t hash = mix(0xCBF29CE484222325ull, bytes);
    size_t at = 0;
    for (; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, data + at, sizeof(word));
      hash = mix(hash, word);
    }
    if (at < bytes) {
      uint64_t word = 0;
      std::memcpy(&word, data + at, bytes - at);
      hash = mix(hash, word);
    }
    *out = hash;
  });
}

int ddp_tensor_over(
    void* data,
    int64_t elements,
    DdpTensor like,
    void (*release)(void* context),
    void* context,
    DdpTensor* out) {
  return guarded([&] {
    *out = new at::Tensor(at::from_blob(
        data,
        {elements},
        [release, context](void*) { release(context); },
        tensor_of(like).options()));
  });
}

int ddp_grad_into_view(DdpTensor parameter, DdpTensor view, double scale, int defer, int* state) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto& gradient = tensor_of(parameter).mutable_grad();
    auto& target = tensor_of(view);
    if (!gradient.defined()) {
      target.zero_();
      *state = DDP_GRAD_UNDEFINED;
      return;
    }
    TORCH_CHECK(
        gradient.layout() == at::kStrided,
        "a gradient is sparse, which cannot be all-reduced; build the embedding with `sparse: false`");
    TORCH_CHECK(
        gradient.scalar_type() == target.scalar_type() && gradient.sizes() == target.sizes() &&
            gradient.device() == target.device(),
        "a parameter changed its dtype, shape or device after its first backward, from ",
        target.scalar_type(), target.sizes(), " on ", target.device(), " to ",
        gradient.scalar_type(), gradient.sizes(), " on ", gradient.device(),
        "; convert the variable store before training begins");
    if (scale == 0.0) {
      // Not a product: what is left out may be infinite.
      target.zero_();
      gradient = target;
      *state = DDP_GRAD_MOVED;
      return;
    }
    if (same_memory(gradient, target)) {
      if (scale != 1.0 && defer == 0) {
        target.mul_(scale);
      }
      *state = scale != 1.0 && defer != 0 ? DDP_GRAD_UNSCALED : DDP_GRAD_IN_PLACE;
      return;
    }
    if (scale == 1.0) {
      target.copy_(gradient);
    } else {
      at::mul_out(target, gradient, at::scalar_tensor(scale, target.options().device(at::kCPU)));
    }
    gradient = target;
    *state = DDP_GRAD_MOVED;
  });
}

int ddp_set_grad(DdpTensor parameter, DdpTensor view) {
  return guarded([&] {
    auto& gradient = tensor_of(parameter).mutable_grad();
    if (view == nullptr) {
      gradient.reset();
    } else {
      gradient = tensor_of(view);
    }
  });
}
