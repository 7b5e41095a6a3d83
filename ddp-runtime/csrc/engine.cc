// The autograd engine: sees every backward of the process, whoever wrote it.
//
// libtorch lets a process choose its engine (`set_default_engine_stub`, the way the Python engine is installed). This one
// is the base engine with a look at each outermost backward: before it runs, the parameters that it will reach are found by
// walking the graph; after it, the caller's part is told. Readiness of a single gradient comes from a post hook on its
// accumulator.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <atomic>
#include <memory>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "batch_norm.h"
#include "error.h"
#include "lend.h"

using ddp::check_callback;
using ddp::guarded;
using torch::autograd::AccumulateGrad;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

std::atomic<const DdpCallbacks*> route{nullptr};

struct Reached {
  std::vector<DdpTensor> leaves;
  std::vector<uintptr_t> identities;
  bool may_leave_undefined = false;
  // Layers on the way whose backward is a collective.
  size_t batch_norms = 0;
  // Those among them with fused kernels.
  size_t fused_batch_norms = 0;
};

// Whether a node may hand on no gradient at all where it got one. libtorch's own do so in few places (a norm of order 0, a
// decomposition of which no differentiable part is used); a function that is not libtorch's may do anything.
bool may_leave_undefined(Node& node) {
  static thread_local std::unordered_map<std::type_index, bool> known;
  const std::type_index type(typeid(node));
  if (const auto found = known.find(type); found != known.end()) {
    return found->second;
  }
  const std::string name = node.name();
  bool may = (name.find("CppNode") != std::string::npos && !ddp::is_batch_norm(node)) || name.find("PyNode") != std::string::npos;
  for (const char* prefix :
       {"NormBackward", "LinalgVectorNorm", "LinalgEig", "LinalgSvd", "LinalgQr", "LinalgLu", "LinalgLdl",
        "torch::autograd::UndefinedGrad"}) {
    may = may || name.rfind(prefix, 0) == 0;
  }
  known.emplace(type, may);
  return may;
}

// The accumulators below `roots`, in the order of a depth-first walk, which the graph alone decides.
Reached reached_leaves(
    const torch::autograd::edge_list& roots, const torch::autograd::edge_list& outputs) {
  std::unordered_set<const Node*> wanted;
  for (const auto& edge : outputs) {
    wanted.insert(edge.function.get());
  }
  Reached reached;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> stack;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) {
      stack.push_back(node);
    }
  };
  for (const auto& edge : roots) {
    visit(edge.function.get());
  }
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (node->num_outputs() == 0) {
      auto* leaf = dynamic_cast<AccumulateGrad*>(node);
      if (leaf != nullptr && (wanted.empty() || wanted.count(leaf) != 0)) {
        reached.leaves.push_back(&leaf->variable);
        reached.identities.push_back(
            reinterpret_cast<uintptr_t>(leaf->variable.unsafeGetTensorImpl()));
      }
      continue;
    }
    if (ddp::exchanges_in_backward(*node)) {
      ++reached.batch_norms;
      reached.fused_batch_norms += ddp::is_fused_batch_norm(*node) ? 1 : 0;
    }
    reached.may_leave_undefined = reached.may_leave_undefined || may_leave_undefined(*node);
    for (const auto& edge : node->next_edges()) {
      visit(edge.function.get());
    }
  }
  return reached;
}

class SynchronisingEngine : public Engine {
 public:
  SynchronisingEngine() = default;
  ~SynchronisingEngine() override {
    stop();
  }

  variable_list execute(
      const torch::autograd::edge_list& roots,
      const variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    const DdpCallbacks* callbacks = route.load(std::memory_order_acquire);
    // `torch::autograd::grad` returns gradients and stores none. A backward inside a backward belongs to the outer one.
    const bool nested = torch::autograd::get_current_graph_task_id() != -1;
    if (callbacks == nullptr || !accumulate_grad || nested) {
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    auto reached = reached_leaves(roots, outputs);
    double scale = 1.0;
    check_callback(callbacks->begin(
        callbacks->context,
        reached.leaves.data(),
        reached.identities.data(),
        reached.leaves.size(),
        reached.batch_norms,
        reached.fused_batch_norms,
        create_graph ? 1 : 0,
        reached.may_leave_undefined ? 1 : 0,
        &scale));
    variable_list result;
    try {
      const ddp::Lending lending;
      result = Engine::execute(
          roots,
          scale == 1.0 ? inputs : scaled(inputs, scale),
          keep_graph,
          create_graph,
          accumulate_grad,
          outputs);
    } catch (...) {
      // The first error is the one to show: what `end` has to say about a failed backward is dropped.
      callbacks->end(callbacks->context, 1);
      throw;
    }
    check_callback(callbacks->end(callbacks->context, 0));
    return result;
  }

 private:
  static variable_list scaled(const variable_list& inputs, double scale) {
    c10::NoGradGuard no_grad;
    variable_list result;
    result.reserve(inputs.size());
    for (const auto& input : inputs) {
      result.push_back(input.defined() ? input * scale : input);
    }
    return result;
  }
};

Engine& engine() {
  // Never destroyed: its device threads may outlive static destruction, as in libtorch's own engine.
  static auto* instance = new SynchronisingEngine();
  return *instance;
}

class ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  explicit ReadyHook(uint32_t id) : id_(id) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const DdpCallbacks* callbacks = route.load(std::memory_order_acquire)) {
      const ddp::Incoming incoming(inputs.empty() ? nullptr : &inputs.front());
      check_callback(callbacks->ready(callbacks->context, id_));
    }
    return outputs;
  }

 private:
  uint32_t id_;
};

} // namespace

struct DdpLeaf {
  // The type of the pointer differs between libtorch versions (shared_ptr before 2.13, intrusive_ptr since).
  decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) node;
  uintptr_t key;
};

int ddp_engine_install(void) {
  return guarded([] { torch::autograd::set_default_engine_stub(engine); });
}

int ddp_engine_route(const DdpCallbacks* callbacks) {
  route.store(callbacks, std::memory_order_release);
  return 0;
}

int ddp_leaf_watch(DdpTensor tensor, uint32_t id, DdpLeaf** out) {
  return guarded([&] {
    const auto& leaf = *static_cast<at::Tensor*>(tensor);
    auto node = torch::autograd::impl::grad_accumulator(leaf);
    TORCH_CHECK(node, "only a leaf that requires a gradient can be watched");
    const auto key = node->add_post_hook(std::make_unique<ReadyHook>(id));
    *out = new DdpLeaf{std::move(node), key};
  });
}

void ddp_leaf_free(DdpLeaf* leaf) {
  if (leaf != nullptr) {
    // del_post_hook does not throw; the node lives until the next line.
    leaf->node->del_post_hook(leaf->key);
    delete leaf;
  }
}
