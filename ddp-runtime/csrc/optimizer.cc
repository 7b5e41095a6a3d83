// torch::optim::Optimizer: which one it is, what it moves, and its state as bytes.
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

#include "error.h"
#include "state.h"

using ddp::guarded;

namespace {

torch::optim::Optimizer& optimizer_of(DdpOptimizer optimizer) {
  return *static_cast<torch::optim::Optimizer*>(optimizer);
}

// The classes are told by their names: their headers bring in all of torch::nn.
const char* name_of(const torch::optim::Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  const char* found = nullptr;
  for (const char* known : {"AdamW", "Adam", "SGD", "RMSprop"}) {
    if (name == std::string("torch::optim::") + known) {
      found = known;
    }
  }
  TORCH_CHECK(found != nullptr, "an optimizer of the class ", name, ", whose state cannot be saved");
  return found;
}

} // namespace

int ddp_optimizer_name(DdpOptimizer optimizer, const char** out) {
  return guarded([&] { *out = name_of(optimizer_of(optimizer)); });
}

int ddp_optimizer_parameters(
    DdpOptimizer optimizer,
    void (*take)(void* context, size_t group, uintptr_t identity, const int64_t* sizes, size_t dims),
    void* context) {
  return guarded([&] {
    size_t group = 0;
    for (auto& parameters : optimizer_of(optimizer).param_groups()) {
      for (const auto& parameter : parameters.params()) {
        const auto sizes = parameter.sizes();
        const auto identity = reinterpret_cast<uintptr_t>(parameter.unsafeGetTensorImpl());
        take(context, group, identity, sizes.data(), sizes.size());
      }
      group += 1;
    }
  });
}

int ddp_optimizer_save(
    DdpOptimizer optimizer,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context) {
  return guarded([&] {
    torch::serialize::OutputArchive archive;
    optimizer_of(optimizer).save(archive);
    archive.save_to([&](const void* data, size_t length) {
      take(context, static_cast<const uint8_t*>(data), length);
      return length;
    });
  });
}

int ddp_optimizer_load(DdpOptimizer optimizer, const uint8_t* data, size_t length) {
  return guarded([&] {
    torch::serialize::InputArchive archive;
    archive.load_from(reinterpret_cast<const char*>(data), length);
    auto& target = optimizer_of(optimizer);
    // A parameter without saved state has none afterwards either.
    target.state().clear();
    target.load(archive);
  });
}
