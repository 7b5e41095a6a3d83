// The thread's last error text.
#include "error.h"

#include <c10/util/Logging.h>

#include <malloc.h>

#include <limits>
#include <stdexcept>

namespace ddp {

namespace {
thread_local std::string last_error;
}

void keep_error(const std::string& text) {
  last_error = text;
}

void throw_kept_error() {
  // torch-sys catches std::exception only, so nothing else may be thrown through it.
  throw std::runtime_error(last_error);
}

} // namespace ddp

const char* ddp_error(void) {
  return ddp::last_error.c_str();
}

void ddp_set_error(const char* text, size_t length) {
  ddp::last_error.assign(text, length);
}

void ddp_keep_freed_memory(void) {
#ifdef __GLIBC__
  // Large blocks from the heap as well, a heap that grows by large steps, and never shrinks.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 256 << 20);
#endif
}

int ddp_init_logging(void) {
  return ddp::guarded([] { c10::initLogging(); });
}
