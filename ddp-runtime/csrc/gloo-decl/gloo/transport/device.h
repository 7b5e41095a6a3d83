// See algorithm.h in the folder above.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
} // namespace gloo::transport
