// SPDX-License-Identifier: Apache-2.0
// The functions of libnvidia-ml.so.1. How many words each takes is not known here and need not be: up to six are in registers, and what a caller has
// not put there is handed on unread. x86-64 and AArch64.
#include "interposer/nvml/shadow.hpp"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "six words in registers: not known of this architecture"
#endif

using mpsshim::interposer::nvml::Function;
using mpsshim::interposer::nvml::Word;

extern "C" {

#define MPSSHIM_NVML_FUNCTION(name)                                                                  \
  __attribute__((visibility("default"))) Word name(Word a, Word b, Word c, Word d, Word e, Word f) { \
    return mpsshim::interposer::nvml::answer(Function::name, {a, b, c, d, e, f});                    \
  }
#include "gen/nvml_functions.inc"
#undef MPSSHIM_NVML_FUNCTION

// By this a copy of the library is known (real_library.cpp).
__attribute__((visibility("default"))) extern const char mpsshim_nvml_shadow;
const char mpsshim_nvml_shadow = 1;

}  // extern "C"
