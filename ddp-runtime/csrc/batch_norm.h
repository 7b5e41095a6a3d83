// Synchronised batch normalisation: what its two kernels share, and what the engine asks of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <optional>

#include "bridge.h"

namespace ddp {

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_defined(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

// A call of batch_norm that is to be synchronised, and fits.
struct BatchNormCall {
  const at::Tensor& input;
  const OptionalTensor& weight;
  const OptionalTensor& bias;
  const OptionalTensor& running_mean;
  const OptionalTensor& running_var;
  double momentum;
  double eps;
  uint64_t layer;
};

// Who combines the ranks' values now; throws outside a scope.
const DdpBatchNormCallbacks& ranks();

// What must hold in a backward.
void check_first_derivative();

// Laid out as the kernels read it without a copy: channels last where it is so already, else contiguous.
at::Tensor laid_out(const at::Tensor& values);

// ---- fused_batch_norm.cc
// Whether libtorch has its fused kernels for the device of this tensor.
bool has_fused_batch_norm(const at::Tensor& input);
// The output of the layer.
at::Tensor fused_batch_norm(const BatchNormCall& call);
bool is_fused_batch_norm(const torch::autograd::Node& node);

// ---- batch_norm.cc, for the engine
// Whether this node of the graph is a synchronised layer. It gives each of its inputs a gradient.
bool is_batch_norm(const torch::autograd::Node& node);

// Whether this node of the graph exchanges values with the other ranks when it runs.
bool exchanges_in_backward(const torch::autograd::Node& node);

} // namespace ddp
