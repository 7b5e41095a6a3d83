// The thread's last error text, and what is set for a process or a thread.
#include "error.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <dlfcn.h>
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

void check_callback(int status) {
  if (status != 0) {
    // torch-sys catches std::exception only, so nothing else may be thrown through it.
    throw std::runtime_error(last_error);
  }
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

int ddp_compute_alone(void) {
  return ddp::guarded([] {
    // The first question of a thread copies the process' setting into it; what follows must come after.
    at::get_num_threads();
    // at::set_num_threads would change the setting of the whole process. OpenMP's own is the thread's; the symbol is that
    // of the OpenMP runtime which libtorch has loaded, if it has one.
    using Set = void (*)(int);
    if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) {
      set(1);
    }
  });
}
