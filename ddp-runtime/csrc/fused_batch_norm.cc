// Synchronised batch normalisation by the fused kernels that libtorch has for GPUs, called as torch.nn.SyncBatchNorm calls them.
//
// Nothing leaves the device: what the ranks exchange are tensors there (`gather` and `add_up` of the callbacks), and the host
// does not wait for it. Unlike PyTorch's, the rows of ranks without values are left out by counts that the host knows.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <tuple>
#include <typeinfo>

#include "batch_norm.h"
#include "error.h"

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace ddp {
namespace {

// The dtype in which the kernels add up.
at::ScalarType accumulated(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// One row for each rank that has values: means, inverse deviations, count of values a channel.
at::Tensor gathered(const BatchNormCall& call) {
  const auto channels = call.input.size(1);
  const auto count = call.input.numel() / channels;
  const auto options = call.input.options().dtype(accumulated(call.input.scalar_type()));
  at::Tensor own;
  if (count == 0) {
    own = at::zeros({2 * channels + 1}, options);
  } else {
    const auto [mean, inverse] = at::batch_norm_stats(call.input, call.eps);
    own = at::cat({mean, inverse, at::full({1}, count, options)});
  }
  DdpTensor rows = nullptr;
  check_callback(ranks().gather(call.layer, static_cast<size_t>(channels), count, &own, &rows));
  const std::unique_ptr<at::Tensor> owned(static_cast<at::Tensor*>(rows));
  return *owned;
}

// Running statistics as the kernel takes them: unseen by autograd, in the dtype of the others.
class Running {
 public:
  Running(const OptionalTensor& given, at::ScalarType kind) {
    if (is_defined(given)) {
      given_ = given->variable_data();
      used_ = given_.to(kind);
    }
  }

  OptionalTensor used() const {
    return used_.defined() ? OptionalTensor(used_) : std::nullopt;
  }

  void write_back() {
    if (used_.defined() && !used_.is_same(given_)) {
      given_.copy_(used_);
    }
  }

 private:
  at::Tensor given_;
  at::Tensor used_;
};

struct Statistics {
  at::Tensor mean;
  at::Tensor inverse;
  // By rank, for the kernel of the backward.
  at::Tensor counts;
};

// Of all ranks; the running statistics move towards them.
Statistics joint_statistics(const BatchNormCall& call) {
  const auto channels = call.input.size(1);
  const auto rows = gathered(call);
  const auto counts = rows.select(1, 2 * channels);
  Running mean(call.running_mean, rows.scalar_type());
  Running variance(call.running_var, rows.scalar_type());
  // Of its first argument the kernel takes dtype and size only.
  const auto joint = at::batch_norm_gather_stats_with_counts(
      rows,
      rows.narrow(1, 0, channels),
      rows.narrow(1, channels, channels),
      mean.used(),
      variance.used(),
      call.momentum,
      call.eps,
      counts);
  mean.write_back();
  variance.write_back();
  return {std::get<0>(joint), std::get<1>(joint), counts.to(at::kInt)};
}

class FusedBatchNorm : public torch::autograd::Function<FusedBatchNorm> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const OptionalTensor& weight,
      const OptionalTensor& bias,
      const at::Tensor& mean,
      const at::Tensor& inverse,
      const at::Tensor& counts,
      double eps,
      int64_t layer) {
    ctx->save_for_backward({input, is_defined(weight) ? *weight : at::Tensor(), mean, inverse, counts});
    ctx->saved_data["bias"] = is_defined(bias);
    ctx->saved_data["layer"] = layer;
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    return at::batch_norm_elemt(input, weight, bias, mean, inverse, eps);
  }

  // The engine casts gradients to the dtypes of what they belong to.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    check_first_derivative();
    const auto saved = ctx->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const auto& mean = saved[2];
    const bool has_bias = ctx->saved_data["bias"].toBool();
    at::Tensor dx, dw, db;
    if (input.numel() == 0) {
      dx = at::zeros_like(input);
      dw = at::zeros_like(mean);
      db = at::zeros_like(mean);
      if (ctx->needs_input_grad(0)) {
        joint_sums(ctx, dw, db);
      }
    } else {
      const auto gradient = gradients[0].contiguous(input.suggest_memory_format());
      const auto scale = weight.defined() ? OptionalTensor(weight) : std::nullopt;
      at::Tensor sums, products;
      std::tie(sums, products, dw, db) = at::batch_norm_backward_reduce(
          gradient, input, mean, saved[3], scale, /*input_g=*/true, weight.defined(), weight.defined());
      // The kernel gives a bias its gradient beside a weight only.
      db = weight.defined() ? db : sums;
      if (ctx->needs_input_grad(0)) {
        dx = gradient_of_input(saved, gradient, joint_sums(ctx, sums, products));
      }
    }
    return {
        dx,
        weight.defined() ? dw : at::Tensor(),
        has_bias ? db : at::Tensor(),
        at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  // Over all ranks: the sums of dy, then those of dy * (x - mean), in one tensor.
  static at::Tensor joint_sums(AutogradContext* ctx, const at::Tensor& sums, const at::Tensor& products) {
    auto both = at::cat({sums, products});
    const auto layer = static_cast<uint64_t>(ctx->saved_data["layer"].toInt());
    check_callback(ranks().add_up(layer, static_cast<size_t>(sums.numel()), &both));
    return both;
  }

  static at::Tensor gradient_of_input(
      const variable_list& saved, const at::Tensor& gradient, const at::Tensor& sums) {
    const auto channels = sums.numel() / 2;
    const auto& mean = saved[2];
    // This kernel takes a weight in the dtype of the statistics only.
    const auto scale =
        saved[1].defined() ? OptionalTensor(saved[1].to(mean.scalar_type()).contiguous()) : std::nullopt;
    return at::batch_norm_backward_elemt(
        gradient,
        saved[0],
        mean,
        saved[3],
        scale,
        sums.narrow(0, 0, channels),
        sums.narrow(0, channels, channels),
        saved[4]);
  }
};

} // namespace

bool has_fused_batch_norm(const at::Tensor& input) {
  static const auto kernel = c10::Dispatcher::singleton().findSchema({"aten::batch_norm_stats", ""});
  const auto key = input.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return kernel.has_value() && kernel->hasKernelForDispatchKey(key);
}

at::Tensor fused_batch_norm(const BatchNormCall& given) {
  const auto input = laid_out(given.input);
  const BatchNormCall call{
      input,
      given.weight,
      given.bias,
      given.running_mean,
      given.running_var,
      given.momentum,
      given.eps,
      given.layer};
  const auto joint = [&] {
    c10::NoGradGuard no_grad;
    return joint_statistics(call);
  }();
  return FusedBatchNorm::apply(
      input,
      call.weight,
      call.bias,
      joint.mean,
      joint.inverse,
      joint.counts,
      call.eps,
      static_cast<int64_t>(call.layer));
}

bool is_fused_batch_norm(const torch::autograd::Node& node) {
  return typeid(node) == typeid(torch::autograd::CppNode<FusedBatchNorm>);
}

} // namespace ddp
