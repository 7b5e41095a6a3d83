// Replicas of a model within one process: their parameters as differentiable copies of the first one's, and what a thread
// of a replica takes over from its caller.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "error.h"
#include "replicate.h"

using ddp::guarded;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

at::Tensor& tensor_of(DdpTensor tensor) {
  return *static_cast<at::Tensor*>(tensor);
}

at::Device device_of(int index) {
  return index < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

// Copies of the sources, replica after replica. Their gradients are added up on the sources' devices, in the order of the
// replicas, so that the result does not depend on which of them was ready first.
struct Replicate : torch::autograd::Function<Replicate> {
  static variable_list forward(
      AutogradContext* context, at::TensorList sources, const std::vector<at::Device>& devices) {
    // A parameter that a replica did not use has no gradient, rather than one of zeros.
    context->set_materialize_grads(false);
    std::vector<int64_t> homes;
    homes.reserve(sources.size());
    for (const auto& source : sources) {
      homes.push_back(source.is_cuda() ? source.get_device() : -1);
    }
    context->saved_data["homes"] = std::move(homes);
    variable_list copies;
    copies.reserve(sources.size() * devices.size());
    for (const auto& device : devices) {
      for (const auto& source : sources) {
        copies.push_back(source.to(source.options().device(device), /*non_blocking=*/false, /*copy=*/true));
      }
    }
    return copies;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto homes = context->saved_data["homes"].toIntVector();
    variable_list sums(homes.size());
    for (size_t at = 0; at < gradients.size(); ++at) {
      const auto parameter = at % homes.size();
      if (!gradients[at].defined() || !context->needs_input_grad(parameter)) {
        continue;
      }
      auto gradient = gradients[at].to(device_of(static_cast<int>(homes[parameter])));
      auto& sum = sums[parameter];
      sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
      gradients[at].reset();
    }
    // The list of devices has no gradient.
    sums.emplace_back();
    return sums;
  }
};

// Gives `replica` the data and the history of `copy`. Whoever holds `replica` (a layer, a graph that is not done yet) goes on
// holding it.
void become(at::Tensor& replica, const at::Tensor& copy, bool changed) {
  replica.set_data(copy);
  torch::autograd::impl::set_gradient_edge(
      replica, copy.requires_grad() ? torch::autograd::impl::gradient_edge(copy) : torch::autograd::Edge());
  if (changed) {
    // An earlier graph that saved the old values must not go on with the new ones.
    torch::autograd::impl::bump_version(replica);
  }
}

} // namespace

struct DdpThreadState {
  at::ThreadLocalState state;
};

struct DdpThreadEntered {
  DdpThreadEntered(const at::ThreadLocalState& state, at::Device device)
      : state_guard(state), device_guard(device) {}
  at::ThreadLocalStateGuard state_guard;
  c10::OptionalDeviceGuard device_guard;
};

int ddp_version(DdpTensor tensor, int64_t* out) {
  return guarded([&] { *out = static_cast<int64_t>(tensor_of(tensor)._version()); });
}

int ddp_in_a_graph(DdpTensor tensor, int* out) {
  return guarded([&] {
    const auto& variable = tensor_of(tensor);
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(variable);
    *out = (!variable.is_leaf() || accumulator) ? 1 : 0;
  });
}

int ddp_replicate(
    const DdpTensor* sources,
    size_t count,
    const int* devices,
    size_t replicas,
    const DdpTensor* copies,
    const uint8_t* changed) {
  return guarded([&] {
    variable_list differentiable;
    std::vector<at::Device> targets;
    for (size_t at = 0; at < count; ++at) {
      if (tensor_of(sources[at]).requires_grad()) {
        differentiable.push_back(tensor_of(sources[at]));
      }
    }
    for (size_t replica = 0; replica < replicas; ++replica) {
      targets.push_back(device_of(devices[replica]));
    }
    variable_list fresh;
    if (!differentiable.empty()) {
      fresh = Replicate::apply(at::TensorList(differentiable), targets);
    }
    size_t next = 0;
    for (size_t replica = 0; replica < replicas; ++replica) {
      for (size_t at = 0; at < count; ++at) {
        const auto& source = tensor_of(sources[at]);
        auto& target = tensor_of(copies[replica * count + at]);
        const bool out_of_date = changed[replica * count + at] != 0;
        if (source.requires_grad()) {
          become(target, fresh[next++], out_of_date);
          continue;
        }
        c10::NoGradGuard no_grad;
        const auto options = source.options().device(targets[replica]);
        become(target, source.detach().to(options, /*non_blocking=*/false, /*copy=*/true), out_of_date);
      }
    }
  });
}

int ddp_thread_state(DdpThreadState** out) {
  return guarded([&] { *out = new DdpThreadState(); });
}

void ddp_thread_state_free(DdpThreadState* state) {
  delete state;
}

int ddp_thread_enter(const DdpThreadState* state, int device, DdpThreadEntered** out) {
  return guarded([&] { *out = new DdpThreadEntered(state->state, device_of(device)); });
}

void ddp_thread_leave(DdpThreadEntered* entered) {
  delete entered;
}
