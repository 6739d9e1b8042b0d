// SPDX-License-Identifier: Apache-2.0
//
// What conversions from and to floating-point numbers share: a warp's values brought into a row of their own, and out of it into the destination.
// Include only from handlers/*.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "broker/cpudriver/ptx/handlers/half.hpp"
#include "broker/cpudriver/ptx/handlers/rounding.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

// The last step of what gives a floating-point number.
template <class Codec, bool Sat>
[[gnu::noinline]] void store_float(Warp& warp, const Instruction& in, const typename Codec::Value* value) {
  store_lanes<typename Codec::Cell, false>(
      row<typename Codec::Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        auto v = value[i];
        if constexpr (Sat) v = saturate(v);
        return Codec::put(v);
      });
}

template <Round R, class T>
[[gnu::always_inline]] inline T integral(T v) {
  if constexpr (sizeof(T) == 4) {
    if constexpr (R == Round::nearest)
      return __builtin_rintf(v);
    else if constexpr (R == Round::down)
      return __builtin_floorf(v);
    else if constexpr (R == Round::up)
      return __builtin_ceilf(v);
    else
      return __builtin_truncf(v);
  } else {
    if constexpr (R == Round::nearest)
      return __builtin_rint(v);
    else if constexpr (R == Round::down)
      return __builtin_floor(v);
    else if constexpr (R == Round::up)
      return __builtin_ceil(v);
    else
      return __builtin_trunc(v);
  }
}

// Halves are never denormal as floats: for them, as for f64, there is nothing to flush.
template <class Codec>
constexpr bool kFlushes = sizeof(typename Codec::Value) == 4 && !std::is_same_v<Codec, HalfCodec>;

template <class Codec, bool Ftz>
[[gnu::noinline]] void load_float(const typename Codec::Cell* from, typename Codec::Value* to) {
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) to[i] = flush_if<Ftz>(Codec::get(from[i]));
}
template <class Codec, bool Ftz, Round R>
[[gnu::noinline]] void load_integral(const typename Codec::Cell* from, typename Codec::Value* to) {
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) to[i] = integral<R>(flush_if<Ftz>(Codec::get(from[i])));
}

template <class Visitor>
Handler with_float(Type type, Visitor visit) {
  switch (type) {
    case Type::f16: return visit(HalfCodec{});
    case Type::bf16: return visit(BfloatCodec{});
    case Type::f32: return visit(Plain<float>{});
    case Type::f64: return visit(Plain<double>{});
    default: return nullptr;
  }
}

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
