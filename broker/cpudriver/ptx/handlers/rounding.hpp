// SPDX-License-Identifier: Apache-2.0
//
// Directed rounding and denormals. expf and the range reductions that nvcc emits use fma.rm and fma.rz, so this is
// ordinary code. Include only from handlers/*.cpp.
#pragma once

#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

enum class Round : std::uint8_t { nearest, down, up, zero };

// Sets MXCSR's rounding for a scope. The clobbers keep the lanes' loads and stores on the right side.
template <Round R>
class RoundingScope {
 public:
  RoundingScope() {
    if constexpr (R != Round::nearest) {
      saved_ = _mm_getcsr();
      constexpr unsigned kMode = R == Round::down ? 0x2000 : R == Round::up ? 0x4000 : 0x6000;
      _mm_setcsr((saved_ & ~0x6000U) | kMode);
      asm volatile("" ::: "memory");
    }
  }
  ~RoundingScope() {
    if constexpr (R != Round::nearest) {
      asm volatile("" ::: "memory");
      _mm_setcsr(saved_);
    }
  }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  unsigned saved_ = 0;
};

// The handler that runs `Lanes` under a rounding. The loop itself is compiled once for all of them, and to nearest it is the handler.
template <Handler Lanes, Round R>
Flow rounded(Warp& warp, const Instruction& in) {
  const RoundingScope<R> rounding;
  return Lanes(warp, in);
}

[[gnu::always_inline]] inline float flush(float v) {
  const auto bits = __builtin_bit_cast(std::uint32_t, v);
  return (bits & 0x7f800000) == 0 ? __builtin_bit_cast(float, bits & 0x80000000) : v;
}
template <bool Ftz, class T>
[[gnu::always_inline]] inline T flush_if(T v) {
  if constexpr (Ftz && sizeof(T) == 4)
    return flush(v);
  else
    return v;
}
template <class T>
[[gnu::always_inline]] inline T saturate(T v) {  // NaN becomes 0.
  return v > T{0} ? (v < T{1} ? v : T{1}) : T{0};
}

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
