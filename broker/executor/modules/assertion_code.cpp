// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/assertion_code.hpp"

// MPSSHIM_ASSERTION_CODES: X(75, "path") ..., from broker/CMakeLists.txt.
#ifndef MPSSHIM_ASSERTION_CODES
#define MPSSHIM_ASSERTION_CODES
#endif

#define X(code, path)                                                                                                              \
  asm(".section .rodata\n.balign 64\n.global mpsshim_assertion_code_" #code "\nmpsshim_assertion_code_" #code ":\n.incbin \"" path \
      "\"\n.global mpsshim_assertion_code_end_" #code "\nmpsshim_assertion_code_end_" #code ":\n.byte 0\n.previous\n");            \
  extern "C" const std::byte mpsshim_assertion_code_##code[];                                                                      \
  extern "C" const std::byte mpsshim_assertion_code_end_##code[];
MPSSHIM_ASSERTION_CODES
#undef X

namespace mpsshim::broker {

std::span<const std::byte> assertion_code([[maybe_unused]] unsigned compute) {
  std::span<const std::byte> found;
  // Of the GPU's own major version, and not newer. In rising order.
#define X(code, path) \
  if (code / 10 == compute / 10 && code <= compute) found = {mpsshim_assertion_code_##code, mpsshim_assertion_code_end_##code};
  MPSSHIM_ASSERTION_CODES
#undef X
  return found;
}

}  // namespace mpsshim::broker
