// Batch normalisation over all ranks, with no change to the model: a kernel for aten::batch_norm at the autograd keys.
//
// It is registered while a scope wants it. What a scope does not synchronise (evaluation, other layers) goes on to libtorch's own
// batch_norm, and so does what instance_norm makes of itself by calling batch_norm: a kernel of its own marks that stretch.
//
// The formulas are those of torch.nn.SyncBatchNorm. Where libtorch has fused kernels for them, which is on GPUs, those compute
// (fused_batch_norm.cc). Elsewhere what one rank computes is computed by libtorch's other kernels: statistics by
// batch_norm_update_stats, which sums in double; the output and its part of the gradient by native_batch_norm with given
// statistics. What the ranks add is theirs (`forward` and `backward` of the callbacks), in double.
#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/instance_norm_compositeimplicitautograd_dispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "batch_norm.h"
#include "error.h"

using ddp::check_callback;
using ddp::guarded;
using ddp::is_defined;
using ddp::laid_out;
using ddp::OptionalTensor;
using ddp::ranks;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DdpBatchNorm {
  std::vector<std::unique_ptr<torch::Library>> kernels;
};

namespace {

std::atomic<const DdpBatchNormCallbacks*> callbacks{nullptr};

thread_local bool inside_instance_norm = false;

// A contiguous copy on the CPU, which the ranks read and write.
at::Tensor to_host(const at::Tensor& values) {
  return values.detach().to(at::TensorOptions().dtype(at::kDouble).device(at::kCPU), false, true).contiguous();
}

// Shaped to be combined with an input of `dim` dimensions, channels in the second.
at::Tensor per_channel(const at::Tensor& values, int64_t dim) {
  std::vector<int64_t> shape(static_cast<size_t>(dim), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

at::ScalarType at_least_float(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

// The dtype in which libtorch's kernels take statistics beside this input.
at::ScalarType statistics_type(const at::Tensor& input, const OptionalTensor& a, const OptionalTensor& b) {
  if (is_defined(a)) {
    return a->scalar_type();
  }
  return is_defined(b) ? b->scalar_type() : at_least_float(input.scalar_type());
}

// Of all ranks, on the CPU in double.
struct Statistics {
  double count;
  at::Tensor mean;
  at::Tensor variance;
};

Statistics joint_statistics(const at::Tensor& input, uint64_t layer) {
  const auto channels = input.size(1);
  Statistics joint{static_cast<double>(input.numel() / channels), {}, {}};
  if (input.numel() == 0) {
    joint.mean = at::zeros({channels}, at::kDouble);
    joint.variance = at::zeros({channels}, at::kDouble);
  } else {
    const auto values = input.detach().to(at_least_float(input.scalar_type()));
    const auto own = at::batch_norm_update_stats(laid_out(values), std::nullopt, std::nullopt, 0.0);
    joint.mean = to_host(std::get<0>(own));
    joint.variance = to_host(std::get<1>(own));
  }
  check_callback(ranks().forward(
      layer,
      static_cast<size_t>(channels),
      &joint.count,
      joint.mean.mutable_data_ptr<double>(),
      joint.variance.mutable_data_ptr<double>()));
  return joint;
}

// As libtorch's own batch_norm, unseen by autograd: a graph that has saved the old values may run its backward.
void move_towards(const OptionalTensor& running, const at::Tensor& value, double momentum) {
  if (is_defined(running)) {
    auto target = running->variable_data();
    target.mul_(1.0 - momentum).add_(value.to(target.options()), momentum);
  }
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const OptionalTensor& weight,
      const OptionalTensor& bias,
      const at::Tensor& mean,
      const at::Tensor& variance,
      double count,
      double eps,
      int64_t layer) {
    ctx->save_for_backward({input, is_defined(weight) ? *weight : at::Tensor(), mean, variance});
    ctx->saved_data["bias"] = is_defined(bias);
    ctx->saved_data["count"] = count;
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["layer"] = layer;
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    return std::get<0>(
        at::native_batch_norm(input, weight, bias, mean, variance, /*training=*/false, 0.0, eps));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    ddp::check_first_derivative();
    const auto saved = ctx->get_saved_variables();
    const auto& weight = saved[1];
    Gradients own = own_gradients(ctx, saved, gradients[0]);
    if (ctx->needs_input_grad(0)) {
      add_the_other_ranks(ctx, saved, own);
    }
    const auto kind = saved[2].scalar_type();
    const bool has_bias = ctx->saved_data["bias"].toBool();
    return {
        own.input.defined() ? own.input.to(saved[0].scalar_type()) : own.input,
        weight.defined() ? own.weight.to(kind) : at::Tensor(),
        has_bias ? own.bias.to(kind) : at::Tensor(),
        at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  struct Gradients {
    at::Tensor input;
    // Sums over this rank's part, also where the layer has no weight and bias.
    at::Tensor weight;
    at::Tensor bias;
  };

  // What this rank's part gives while the statistics are taken for constants. Reduced dtypes are computed in float.
  static Gradients own_gradients(AutogradContext* ctx, const variable_list& saved, const at::Tensor& gradient) {
    const auto& input = saved[0];
    if (input.numel() == 0) {
      return {at::zeros_like(input), at::zeros_like(saved[2]), at::zeros_like(saved[2])};
    }
    const auto kind = at_least_float(input.scalar_type());
    const auto format = input.suggest_memory_format();
    const auto weight = saved[1].defined() ? OptionalTensor(saved[1].to(kind)) : std::nullopt;
    auto [dx, dw, db] = at::native_batch_norm_backward(
        gradient.to(kind).contiguous(format),
        input.to(kind).contiguous(format),
        weight,
        saved[2].to(kind),
        saved[3].to(kind),
        std::nullopt,
        std::nullopt,
        /*train=*/false,
        ctx->saved_data["eps"].toDouble(),
        {ctx->needs_input_grad(0), true, true});
    return {dx, dw, db};
  }

  // The statistics depend on all ranks' inputs: with c = weight / (deviation * count),
  // dx = own dx - c * (sum of dy) - c * (x - mean) / deviation * (sum of dy * normalised x), the sums over all ranks.
  static void add_the_other_ranks(AutogradContext* ctx, const variable_list& saved, Gradients& own) {
    auto sums = to_host(own.bias);
    auto products = to_host(own.weight);
    check_callback(ranks().backward(
        static_cast<uint64_t>(ctx->saved_data["layer"].toInt()),
        static_cast<size_t>(sums.numel()),
        sums.mutable_data_ptr<double>(),
        products.mutable_data_ptr<double>()));
    const auto& input = saved[0];
    if (input.numel() == 0) {
      return;
    }
    const auto inverse = (to_host(saved[3]) + ctx->saved_data["eps"].toDouble()).rsqrt();
    auto c = inverse / ctx->saved_data["count"].toDouble();
    if (saved[1].defined()) {
      c = c * to_host(saved[1]);
    }
    const auto channel = [&](const at::Tensor& values) {
      return per_channel(values.to(own.input.options()), input.dim());
    };
    const auto centred = input.to(own.input.scalar_type()) - channel(saved[2]);
    own.input.sub_(channel(c * sums)).addcmul_(centred, channel(c * inverse * products), -1.0);
  }
};

// Whether all that goes with the input has one value a channel: what has not is left to libtorch, which says so.
bool fits(const at::Tensor& input, std::initializer_list<const OptionalTensor*> parts) {
  if (input.dim() < 2 || input.size(1) == 0 || !at::isFloatingType(input.scalar_type())) {
    return false;
  }
  for (const auto* part : parts) {
    if (is_defined(*part) && (*part)->numel() != input.size(1)) {
      return false;
    }
  }
  return true;
}

// 0 where this call is not to be synchronised, else the number of the layer.
uint64_t selected(const OptionalTensor& running_mean) {
  const auto* found = callbacks.load(std::memory_order_acquire);
  if (found == nullptr || inside_instance_norm) {
    return 0;
  }
  uint64_t layer = 0;
  check_callback(found->select(
      is_defined(running_mean) ? reinterpret_cast<uintptr_t>(running_mean->unsafeGetTensorImpl()) : 0,
      &layer));
  return layer;
}

at::Tensor batch_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    bool training,
    double momentum,
    double eps,
    bool cudnn_enabled) {
  const bool synchronisable = training && fits(input, {&weight, &bias, &running_mean, &running_var});
  const auto layer = synchronisable ? selected(running_mean) : 0;
  if (layer == 0) {
    return at::compositeimplicitautograd::batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  if (ddp::has_fused_batch_norm(input)) {
    return ddp::fused_batch_norm(
        {input, weight, bias, running_mean, running_var, momentum, eps, layer});
  }
  at::Tensor mean, variance;
  double count = 0.0;
  {
    c10::NoGradGuard no_grad;
    const auto joint = joint_statistics(input, layer);
    count = joint.count;
    move_towards(running_mean, joint.mean, momentum);
    move_towards(running_var, joint.variance * (count / (count - 1.0)), momentum);
    const auto options = input.options().dtype(statistics_type(input, weight, running_mean));
    mean = joint.mean.to(options);
    variance = joint.variance.to(options);
  }
  return SyncBatchNorm::apply(
      input, weight, bias, mean, variance, count, eps, static_cast<int64_t>(layer));
}

at::Tensor instance_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    bool use_input_stats,
    double momentum,
    double eps,
    bool cudnn_enabled) {
  struct Restore {
    bool before = std::exchange(inside_instance_norm, true);
    ~Restore() {
      inside_instance_norm = before;
    }
  } restore;
  return at::compositeimplicitautograd::instance_norm(
      input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled);
}

} // namespace

const DdpBatchNormCallbacks& ddp::ranks() {
  const auto* found = callbacks.load(std::memory_order_acquire);
  TORCH_CHECK(found != nullptr, "the backward of a synchronised batch_norm came after its scope had ended");
  return *found;
}

void ddp::check_first_derivative() {
  TORCH_CHECK(
      !at::GradMode::is_enabled(),
      "second derivatives through a synchronised batch_norm are not available; keep its variable store local with "
      "`local_batch_norm`");
}

at::Tensor ddp::laid_out(const at::Tensor& values) {
  return values.contiguous(values.suggest_memory_format());
}

bool ddp::is_batch_norm(const torch::autograd::Node& node) {
  return is_fused_batch_norm(node) || typeid(node) == typeid(torch::autograd::CppNode<SyncBatchNorm>);
}

bool ddp::exchanges_in_backward(const torch::autograd::Node& node) {
  // As needs_input_grad(0) says for a backward that stores all gradients.
  return is_batch_norm(node) && node.next_edge(0).is_valid();
}

int ddp_batch_norm_install(const DdpBatchNormCallbacks* found, DdpBatchNorm** out) {
  return guarded([&] {
    auto installed = std::make_unique<DdpBatchNorm>();
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      auto library = std::make_unique<torch::Library>(
          torch::Library::IMPL, "aten", std::make_optional(key), __FILE__, __LINE__);
      library->impl("batch_norm", TORCH_FN(batch_norm));
      library->impl("instance_norm", TORCH_FN(instance_norm));
      installed->kernels.push_back(std::move(library));
    }
    callbacks.store(found, std::memory_order_release);
    *out = installed.release();
  });
}

void ddp_batch_norm_remove(DdpBatchNorm* installed) {
  callbacks.store(nullptr, std::memory_order_release);
  delete installed;
}
