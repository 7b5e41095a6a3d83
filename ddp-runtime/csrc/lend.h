// Between lend.cc and engine.cc: when memory is lent, and what holds a gradient beside its leaf.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/DimVector.h>

namespace ddp {

// While this lives, large tensors that this thread makes on the CPU lie in the lender's memory.
class Lending {
 public:
  Lending();
  ~Lending();
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

 private:
  bool before_;
};

// While this lives, the engine holds `gradient` on this thread for the accumulator that it was given to.
class Incoming {
 public:
  explicit Incoming(const at::Tensor* gradient);
  ~Incoming();
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

 private:
  const at::Tensor* before_;
};

// The strides that autograd's layout contract asks of the gradient of a parameter: the parameter's own where it is dense, else
// those of rows after one another.
inline c10::DimVector gradient_strides(const at::Tensor& parameter) {
  return c10::DimVector(
      parameter.is_non_overlapping_and_dense() ? parameter.strides()
                                               : at::empty(parameter.sizes(), at::kMeta).strides());
}

} // namespace ddp
