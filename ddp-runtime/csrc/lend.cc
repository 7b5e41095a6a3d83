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
#include <mutex>
#include <unordered_map>
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

// The blocks that are lent, by their addresses: memory that was asked for with `raw_allocate`, such as oneDNN's scratch memory,
// is freed by its address alone, and libtorch refuses blocks for it that need more.
class Loans {
 public:
  void add(void* data, Loan loan) {
    const std::lock_guard<std::mutex> lock(mutex_);
    loans_.emplace(data, loan);
  }

  // False if the block was not lent.
  bool end(void* data) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto found = loans_.find(data);
    if (found == loans_.end()) {
      return false;
    }
    const Loan loan = found->second;
    loans_.erase(found);
    lock.unlock();
    loan.release(loan.owner);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Loan> loans_;
};

Loans& loans() {
  // Never destroyed: tensors in static variables are freed after it.
  static auto* all = new Loans();
  return *all;
}

void give_back(void* data) {
  loans().end(data);
}

class LendingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const DdpLender* from = lending && bytes >= DDP_LEND_LEAST ? lender.load(std::memory_order_acquire) : nullptr;
    if (from != nullptr) {
      void* owner = nullptr;
      if (void* data = from->lend(from->context, bytes, &owner)) {
        loans().add(data, Loan{from->release, owner});
        return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
      }
    }
    return base().allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return base().raw_deleter() == nullptr ? nullptr : &free_raw;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    base().copy_data(to, from, bytes);
  }

  // The allocator that was there; asked for first before this one takes its place.
  static c10::Allocator& base() {
    static c10::Allocator* found = c10::GetCPUAllocator();
    return *found;
  }

 private:
  static void free_raw(void* data) {
    if (!loans().end(data)) {
      base().raw_deleter()(data);
    }
  }
};

// How many tensors with a gradient's memory live only as long as the engine's call: the one it came in, and, where that is a view
// (a linear layer's is the transpose of a matrix product), the tensor that it is a view of, if nobody else holds it.
size_t held_by_engine(const at::Tensor& gradient) {
  if (incoming == nullptr || !incoming->defined() || incoming->is_same(gradient) || !incoming->has_storage() ||
      !incoming->storage().is_alias_of(gradient.storage())) {
    return 0;
  }
  return incoming->is_view() && incoming->_base().use_count() == 1 ? 2 : 1;
}

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
      LendingAllocator::base();
      c10::SetCPUAllocator(new LendingAllocator());
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
    if (storage.use_count() != 1 + held_by_engine(gradient)) {
      return;
    }
    at::Tensor whole = at::empty({0}, gradient.options());
    whole.set_(storage, gradient.storage_offset(), {gradient.numel()}, {1});
    *flat = new at::Tensor(std::move(whole));
    *view = new at::Tensor(gradient);
  });
}
