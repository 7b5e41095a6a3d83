// CPU kernels for the five operations that libtorch has for GPUs only, written from their definition, so that the tests see the
// synchronised BatchNorm that GPUs have. What the GPU's kernels require of dtypes, these require too.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <tuple>
#include <vector>

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::ScalarType accumulated(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

bool is_defined(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

void check_kind(const at::Tensor& tensor, at::ScalarType kind, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == kind, name, " is ", tensor.scalar_type(), ", not ", kind);
}

// Affine parameters have the dtype of the input or that of the statistics.
void check_parameter(const OptionalTensor& parameter, const at::Tensor& input, const char* name) {
  if (is_defined(parameter) && parameter->scalar_type() != input.scalar_type()) {
    check_kind(*parameter, accumulated(input.scalar_type()), name);
  }
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> over{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    over.push_back(dim);
  }
  return over;
}

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.to(accumulated(input.scalar_type())).view(shape);
}

at::Tensor widened(const at::Tensor& input) {
  return input.to(accumulated(input.scalar_type()));
}

std::tuple<at::Tensor, at::Tensor> stats(const at::Tensor& input, double eps) {
  TORCH_CHECK(input.numel() > 0, "no values");
  const auto over = all_but_channels(input);
  const auto values = widened(input);
  return {values.mean(over), (values.var(over, /*unbiased=*/false) + eps).rsqrt()};
}

void move_towards(const OptionalTensor& running, const at::Tensor& value, double momentum) {
  if (is_defined(running)) {
    at::Tensor target = *running;
    target.mul_(1.0 - momentum).add_(value, momentum);
  }
}

std::tuple<at::Tensor, at::Tensor> gather(
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    double momentum,
    double eps,
    const at::Tensor& counts) {
  const auto kind = is_defined(running_mean) ? running_mean->scalar_type() : input.scalar_type();
  check_kind(counts, kind, "counts");
  check_kind(mean, accumulated(kind), "mean");
  check_kind(invstd, accumulated(kind), "invstd");
  TORCH_CHECK(mean.dim() == 2 && counts.dim() == 1 && counts.min().item<double>() > 0, "a rank without values");
  const auto weights = counts.to(mean.scalar_type()).unsqueeze(1);
  const auto total = weights.sum();
  const auto joint = (mean * weights).sum(0) / total;
  const auto variances = invstd.reciprocal().square() - eps;
  const auto variance = ((variances + (mean - joint).square()) * weights).sum(0) / total;
  move_towards(running_mean, joint, momentum);
  move_towards(running_var, variance * (total / (total - 1)), momentum);
  return {joint, (variance + eps).rsqrt()};
}

at::Tensor elemt(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    double /*eps*/) {
  check_kind(mean, accumulated(input.scalar_type()), "mean");
  check_parameter(weight, input, "weight");
  check_parameter(bias, input, "bias");
  auto output = (widened(input) - per_channel(mean, input)) * per_channel(invstd, input);
  if (is_defined(weight)) {
    output = output * per_channel(*weight, input);
  }
  if (is_defined(bias)) {
    output = output + per_channel(*bias, input);
  }
  return at::empty_like(input).copy_(output);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_reduce(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    bool input_g,
    bool weight_g,
    bool bias_g) {
  check_kind(gradient, input.scalar_type(), "grad_out");
  check_kind(mean, accumulated(input.scalar_type()), "mean");
  check_parameter(weight, input, "weight");
  TORCH_CHECK(is_defined(weight) || (!weight_g && !bias_g), "gradients of parameters without a weight");
  const auto over = all_but_channels(input);
  const auto dy = widened(gradient);
  const auto sums = dy.sum(over);
  const auto products = (dy * (widened(input) - per_channel(mean, input))).sum(over);
  const auto as_weight = [&](const at::Tensor& values) { return values.to(weight->scalar_type()); };
  return {
      input_g ? sums : at::Tensor(),
      input_g ? products : at::Tensor(),
      weight_g ? as_weight(products * invstd) : at::Tensor(),
      bias_g ? as_weight(sums) : at::Tensor()};
}

at::Tensor backward_elemt(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    const at::Tensor& sum_dy,
    const at::Tensor& sum_dy_xmu,
    const at::Tensor& count) {
  const auto kind = accumulated(input.scalar_type());
  check_kind(gradient, input.scalar_type(), "grad_out");
  check_kind(mean, kind, "mean");
  check_kind(sum_dy, kind, "sum_dy");
  check_kind(sum_dy_xmu, kind, "sum_dy_xmu");
  check_kind(count, at::kInt, "count");
  if (is_defined(weight)) {
    check_kind(*weight, kind, "weight");
  }
  const auto total = count.sum();
  const auto channel = [&](const at::Tensor& values) { return per_channel(values, input); };
  const auto centred = widened(input) - channel(mean);
  auto dx = widened(gradient) - channel(sum_dy / total) - centred * channel(invstd.square() * sum_dy_xmu / total);
  dx = dx * channel(invstd);
  if (is_defined(weight)) {
    dx = dx * channel(*weight);
  }
  return at::empty_like(input).copy_(dx);
}

} // namespace

// From now on this process has the five operations on the CPU. Returns 0 on success.
extern "C" int ddp_tests_add_fused_batch_norm() {
  try {
    // Never removed: the process ends with it.
    static auto* library = new torch::Library(
        torch::Library::IMPL, "aten", std::make_optional(c10::DispatchKey::CPU), __FILE__, __LINE__);
    library->impl("batch_norm_stats", TORCH_FN(stats));
    library->impl("batch_norm_gather_stats_with_counts", TORCH_FN(gather));
    library->impl("batch_norm_elemt", TORCH_FN(elemt));
    library->impl("batch_norm_backward_reduce", TORCH_FN(backward_reduce));
    library->impl("batch_norm_backward_elemt", TORCH_FN(backward_elemt));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
