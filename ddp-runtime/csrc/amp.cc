// Mixed precision: gradients of a scaled loss, checked and unscaled in one pass.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "error.h"
#include "amp.h"

using ddp::guarded;

namespace {

// The kernel takes gradients of one device and dtype at a time.
void add(std::vector<std::vector<at::Tensor>>& lists, at::Tensor gradient) {
  const auto fits = [&](const std::vector<at::Tensor>& list) {
    return list.front().device() == gradient.device() &&
        list.front().scalar_type() == gradient.scalar_type();
  };
  auto list = std::find_if(lists.begin(), lists.end(), fits);
  if (list == lists.end()) {
    list = lists.insert(list, std::vector<at::Tensor>{});
  }
  list->push_back(std::move(gradient));
}

} // namespace

int ddp_unscale_gradients(
    const DdpTensor* parameters, size_t count, float inverse_scale, size_t* gradients, int* found_inf) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> lists;
    *gradients = 0;
    for (size_t at = 0; at < count; ++at) {
      auto gradient = static_cast<at::Tensor*>(parameters[at])->grad();
      if (!gradient.defined()) {
        continue;
      }
      TORCH_CHECK(
          gradient.scalar_type() != at::kHalf,
          "a gradient is of half precision, in which it cannot be unscaled; keep the parameters in single precision and "
          "let autocast choose the precision of each operation");
      ++*gradients;
      add(lists, gradient.is_sparse() ? gradient._values() : std::move(gradient));
    }
    bool found = false;
    for (auto& list : lists) {
      const auto options = at::TensorOptions().dtype(at::kFloat).device(list.front().device());
      auto flag = at::zeros({1}, options);
      at::_amp_foreach_non_finite_check_and_unscale_(list, flag, at::full({}, inverse_scale, options));
      found = found || flag.item<float>() != 0.0f;
    }
    *found_inf = found ? 1 : 0;
  });
}
