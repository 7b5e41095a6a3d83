// c10d::ProcessGroupGloo: asynchronous collectives on CPU tensors.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "error.h"
#include "store.h"

using ddp::guarded;

struct DdpGroup {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

struct DdpWork {
  c10::intrusive_ptr<c10d::Work> work;
};

namespace {

at::Tensor& tensor_of(DdpTensor tensor) {
  return *static_cast<at::Tensor*>(tensor);
}

c10d::ReduceOp::RedOpType reduce_op(int op) {
  switch (op) {
    case DDP_SUM:
      return c10d::ReduceOp::SUM;
    case DDP_MIN:
      return c10d::ReduceOp::MIN;
    case DDP_MAX:
      return c10d::ReduceOp::MAX;
    case DDP_PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    default:
      TORCH_CHECK(false, "unknown reduction ", op);
  }
}

} // namespace

int ddp_gloo_new(
    DdpStore* store,
    const char* prefix,
    int rank,
    int size,
    const char* address,
    int64_t timeout_ms,
    DdpGroup** out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    // Several groups live on one store: each gets its own key space.
    auto keys = c10::make_intrusive<c10d::PrefixStore>(prefix, store->store);
    *out = new DdpGroup{c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, size, options)};
  });
}

void ddp_gloo_free(DdpGroup* group) {
  delete group;
}

int ddp_gloo_all_reduce(DdpGroup* group, DdpTensor tensor, int op, DdpWork** out) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    *out = new DdpWork{group->group->allreduce(tensors, options)};
  });
}

int ddp_gloo_broadcast(DdpGroup* group, DdpTensor tensor, int root, DdpWork** out) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.rootTensor = 0;
    *out = new DdpWork{group->group->broadcast(tensors, options)};
  });
}

int ddp_gloo_all_gather(DdpGroup* group, DdpTensor output, DdpTensor input, DdpWork** out) {
  return guarded([&] {
    const auto size = group->group->getSize();
    auto flat = tensor_of(output).view({size, -1});
    std::vector<std::vector<at::Tensor>> outputs{flat.unbind(0)};
    std::vector<at::Tensor> inputs{tensor_of(input).view({-1})};
    *out = new DdpWork{group->group->allgather(outputs, inputs)};
  });
}

int ddp_work_wait(DdpWork* work, int64_t timeout_ms, int* done) {
  return guarded([&] {
    const auto limit = std::chrono::milliseconds(timeout_ms < 1 ? 1 : timeout_ms);
    try {
      work->work->wait(limit);
    } catch (...) {
      // A wait that ran into its limit throws like a work that failed, and making that exception takes long enough (it
      // holds a backtrace) for the work to end meanwhile. So only the work itself tells which it was.
      if (!work->work->isCompleted()) {
        *done = 0;
        return;
      }
      // It has ended: this returns at once, or throws what the work failed with.
      work->work->wait(limit);
    }
    *done = 1;
  });
}

int ddp_work_is_done(DdpWork* work, int* done) {
  return guarded([&] { *done = work->work->isCompleted() ? 1 : 0; });
}

void ddp_work_free(DdpWork* work) {
  delete work;
}
