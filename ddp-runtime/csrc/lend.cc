// Memory for gradients: what a backward makes lies where a transport can reduce it, so that nothing is copied into a bucket.
//
// Once there was a lender, libtorch's allocator for the CPU is one that asks it for large tensors made inside a backward, and
// leaves all else to the allocator that was there. It stays for ever: storages remember the allocator they came from.
#include "lend.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <utility>

#include "error.h"

using ddp::guarded;

namespace {

thread_local bool lending = false;
thread_local const at::Tensor* incoming = nullptr;

std::atomic<const DdpLender*> lender{nullptr};

// What a lent block is freed by: its tensors may outlive the lender.
struct Loan {
  void (*release)(void* owner);
  void* owner;
};

void give_back(void* context) {
  const auto* loan = static_cast<Loan*>(context);
  loan->release(loan->owner);
  delete loan;
}

class LendingAllocator final : public c10::Allocator {
 public:
  explicit LendingAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    const DdpLender* from = lending && bytes >= DDP_LEND_LEAST ? lender.load(std::memory_order_acquire) : nullptr;
    if (from != nullptr) {
      void* owner = nullptr;
      if (void* data = from->lend(from->context, bytes, &owner)) {
        return {data, new Loan{from->release, owner}, &give_back, c10::Device(c10::DeviceType::CPU)};
      }
    }
    return base_->allocate(bytes);
  }

  // For memory without an owner of its own, which is never lent.
  c10::DeleterFnPtr raw_deleter() const override {
    return base_->raw_deleter();
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* base_;
};

} // namespace

ddp::Lending::Lending() : before_(std::exchange(lending, true)) {}

ddp::Lending::~Lending() {
  lending = before_;
}

ddp::Incoming::Incoming(const at::Tensor* gradient) : before_(std::exchange(incoming, gradient)) {}

ddp::Incoming::~Incoming() {
  incoming = before_;
}

int ddp_lender_set(const DdpLender* found) {
  return guarded([&] {
    static const bool installed = [] {
      c10::SetCPUAllocator(new LendingAllocator(c10::GetCPUAllocator()));
      return true;
    }();
    static_cast<void>(installed);
    lender.store(found, std::memory_order_release);
  });
}

int ddp_grad_adopt(DdpTensor parameter, DdpTensor* view, DdpTensor* flat) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto& leaf = *static_cast<at::Tensor*>(parameter);
    const auto& gradient = leaf.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense()) {
      return;
    }
    const auto& storage = gradient.storage();
    if (storage.data_ptr().get_deleter() != &give_back || gradient.scalar_type() != leaf.scalar_type() ||
        gradient.sizes() != leaf.sizes() || gradient.strides() != ddp::gradient_strides(leaf)) {
      return;
    }
    // Nobody else may see the memory change: beside the gradient only what the engine is about to drop.
    const bool engine_holds = incoming != nullptr && incoming->defined() && !incoming->is_same(gradient) &&
        incoming->has_storage() && incoming->storage().is_alias_of(storage);
    if (storage.use_count() != (engine_holds ? 2 : 1)) {
      return;
    }
    at::Tensor whole = at::empty({0}, gradient.options());
    whole.set_(storage, gradient.storage_offset(), {gradient.numel()}, {1});
    *flat = new at::Tensor(std::move(whole));
    *view = new at::Tensor(gradient);
  });
}
