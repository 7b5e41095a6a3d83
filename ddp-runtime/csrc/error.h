// How a C++ exception becomes a status and a text.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "bridge.h"

namespace ddp {

void keep_error(const std::string& text);

// Throws what a callback has reported, unless its status is 0; the text is already kept.
void check_callback(int status);

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
