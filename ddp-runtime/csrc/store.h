// What a DdpStore holds; shared with gloo.cc.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

struct DdpStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};
