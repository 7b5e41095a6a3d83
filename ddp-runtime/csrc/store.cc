// c10d::TCPStore: rendezvous, failure notices.
#include "store.h"

#include <chrono>
#include <string>
#include <vector>

#include "error.h"

using ddp::guarded;

int ddp_store_new(
    const char* host, uint16_t port, int is_server, int listen_fd, int64_t timeout_ms, DdpStore** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server != 0;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    if (listen_fd >= 0) {
      options.masterListenFd = listen_fd;
    }
    *out = new DdpStore{c10::make_intrusive<c10d::TCPStore>(std::string(host), options)};
  });
}

void ddp_store_free(DdpStore* store) {
  delete store;
}

int ddp_store_set(DdpStore* store, const char* key, const uint8_t* data, size_t length) {
  return guarded([&] { store->store->set(key, std::vector<uint8_t>(data, data + length)); });
}

int ddp_store_get(
    DdpStore* store,
    const char* key,
    int64_t timeout_ms,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context) {
  return guarded([&] {
    store->store->wait({key}, std::chrono::milliseconds(timeout_ms));
    const auto value = store->store->get(key);
    take(context, value.data(), value.size());
  });
}

int ddp_store_check(DdpStore* store, const char* key, int* out) {
  return guarded([&] { *out = store->store->check({key}) ? 1 : 0; });
}
