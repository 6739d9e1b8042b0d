// SPDX-License-Identifier: Apache-2.0
//
// binary16 and bfloat16 as integers, converted with correct rounding and without branches, so that loops over them
// vectorise. Include only from handlers/*.cpp.
#pragma once

#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

[[gnu::always_inline]] inline float half_to_float(std::uint32_t h) {
  const std::uint32_t sign = (h & 0x8000) << 16;
  const std::uint32_t magnitude = h & 0x7fff;
  // Exponent moved by a multiplication: exact for normal and subnormal halves alike.
  const float scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112F;
  const std::uint32_t special = 0x7f800000 | magnitude << 13;  // Infinity and NaN.
  const std::uint32_t bits = magnitude >= 0x7c00 ? special : __builtin_bit_cast(std::uint32_t, scaled);
  return __builtin_bit_cast(float, bits | sign);
}

// To nearest even.
[[gnu::always_inline]] inline std::uint32_t float_to_half(float value) {
  const auto all = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (all >> 16) & 0x8000;
  const std::uint32_t bits = all & 0x7fffffff;
  const std::uint32_t normal = (bits + 0xfff + ((bits >> 13) & 1) - 0x38000000) >> 13;
  // Below 2^-14 the sum with 0.5 has its unit in the last place at 2^-24, a half's smallest step.
  const float shifted = __builtin_bit_cast(float, bits) + 0.5F;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000;
  std::uint32_t result = bits < 0x38800000 ? subnormal : normal;
  result = bits >= 0x477ff000 ? 0x7c00 : result;  // 65520 and more round to infinity.
  result = bits > 0x7f800000 ? 0x7fff : result;   // NaN.
  return (bits > 0x7f800000 ? 0 : sign) | result;
}

// Toward zero.
[[gnu::always_inline]] inline std::uint32_t float_to_half_rz(float value) {
  const std::uint32_t nearest = float_to_half(value);
  const float back = half_to_float(nearest);
  const auto magnitude = [](float v) { return __builtin_bit_cast(std::uint32_t, v) & 0x7fffffff; };
  const bool is_finite = magnitude(value) < 0x7f800000;
  return is_finite && magnitude(back) > magnitude(value) ? nearest - 1 : nearest;
}

[[gnu::always_inline]] inline float bfloat_to_float(std::uint32_t b) { return __builtin_bit_cast(float, b << 16); }
[[gnu::always_inline]] inline std::uint32_t float_to_bfloat(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded;
}
[[gnu::always_inline]] inline std::uint32_t float_to_bfloat_rz(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : bits >> 16;
}

struct HalfCodec {
  using Value = float;
  using Cell = std::uint32_t;
  [[gnu::always_inline]] static float get(Cell c) { return half_to_float(c & 0xffff); }
  [[gnu::always_inline]] static Cell put(float v) { return float_to_half(v); }
};
struct BfloatCodec {
  using Value = float;
  using Cell = std::uint32_t;
  [[gnu::always_inline]] static float get(Cell c) { return bfloat_to_float(c & 0xffff); }
  [[gnu::always_inline]] static Cell put(float v) { return float_to_bfloat(v); }
};

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
