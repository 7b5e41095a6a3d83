// How a C++ exception becomes a status and a text.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "bridge.h"

namespace ddp {

void keep_error(const std::string& text);

// A failure that a callback has reported; its text is already kept.
[[noreturn]] void throw_kept_error();

template <typename F>
int guarded(F&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    // what() of this type ends in a C++ backtrace of twenty lines.
    keep_error(error.what_without_backtrace());
  } catch (const std::exception& error) {
    keep_error(error.what());
  } catch (...) {
    keep_error("an exception of an unknown type");
  }
  return 1;
}

} // namespace ddp
