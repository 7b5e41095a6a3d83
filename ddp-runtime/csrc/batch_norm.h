// What the engine asks of synchronised batch normalisation.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace ddp {

// Whether this node of the graph is a synchronised layer. It gives each of its inputs a gradient.
bool is_batch_norm(const torch::autograd::Node& node);

// Whether this node of the graph exchanges values with the other ranks when it runs.
bool exchanges_in_backward(const torch::autograd::Node& node);

} // namespace ddp
