// SPDX-License-Identifier: Apache-2.0
//
// How handlers walk the 32 lanes. Everything here is in the namespace of the instruction set it is compiled for, so
// that the linker never merges an AVX2 copy of a function with a baseline one. Include only from handlers/*.cpp.
//
// Rows of one instruction are either the same row or disjoint; hence the "no dependence" marks on the loops.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "broker/cpudriver/ptx/execution.hpp"
#include "broker/cpudriver/ptx/form.hpp"
#include "broker/cpudriver/ptx/handlers/codecs.hpp"

#if defined(__clang__)
#define MPSSHIM_LANE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define MPSSHIM_LANE_LOOP _Pragma("GCC ivdep")
#endif

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

template <class T>
[[gnu::always_inline]] inline T* row(const Warp& warp, std::uint32_t operand) {
  return reinterpret_cast<T*>(warp.base[operand >> 30] + (operand & 0x3fffffff));
}

[[gnu::always_inline]] inline std::uint32_t predicate(const Warp& warp, std::uint32_t operand) { return *row<std::uint32_t>(warp, operand); }

alignas(64) constexpr std::uint32_t kLaneBit[kLanes] = {1U << 0,  1U << 1,  1U << 2,  1U << 3,  1U << 4,  1U << 5,  1U << 6,  1U << 7,
                                                        1U << 8,  1U << 9,  1U << 10, 1U << 11, 1U << 12, 1U << 13, 1U << 14, 1U << 15,
                                                        1U << 16, 1U << 17, 1U << 18, 1U << 19, 1U << 20, 1U << 21, 1U << 22, 1U << 23,
                                                        1U << 24, 1U << 25, 1U << 26, 1U << 27, 1U << 28, 1U << 29, 1U << 30, 1U << 31};

// Copies the active lanes of `from` to `to`.
template <class Cell>
[[gnu::always_inline]] inline void blend(Cell* to, const Cell* from, std::uint32_t exec) {
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) to[i] = (exec & kLaneBit[i]) != 0 ? from[i] : to[i];
}

// Runs `body(i)` for all lanes into a row, keeping inactive lanes. Op::kPerLane: only for active lanes, one by one
// (library functions, and operations that trap on garbage).
template <class Cell, bool PerLane, class Body>
[[gnu::always_inline]] inline void store_lanes(Cell* d, std::uint32_t exec, Body body) {
  if constexpr (PerLane) {
    for (std::uint32_t rest = exec; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      d[i] = body(i);
    }
  } else if (exec == kAllLanes) {
    MPSSHIM_LANE_LOOP
    for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = body(i);
  } else {
    alignas(64) Cell result[kLanes];
    MPSSHIM_LANE_LOOP
    for (std::uint32_t i = 0; i < kLanes; ++i) result[i] = body(i);
    blend(d, result, exec);
  }
}

// Op has: D, A, B, C (codecs as far as needed), kPerLane, and f().
template <class Op>
Flow map1(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Op::A::Cell>(warp, in.a);
  store_lanes<typename Op::D::Cell, Op::kPerLane>(
      row<typename Op::D::Cell>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return Op::D::put(Op::f(Op::A::get(a[i]))); });
  return Flow::next;
}

template <class Op>
Flow map2(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Op::A::Cell>(warp, in.a);
  const auto* b = row<const typename Op::B::Cell>(warp, in.b);
  store_lanes<typename Op::D::Cell, Op::kPerLane>(
      row<typename Op::D::Cell>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return Op::D::put(Op::f(Op::A::get(a[i]), Op::B::get(b[i]))); });
  return Flow::next;
}

template <class Op>
Flow map3(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Op::A::Cell>(warp, in.a);
  const auto* b = row<const typename Op::B::Cell>(warp, in.b);
  const auto* c = row<const typename Op::C::Cell>(warp, in.c);
  store_lanes<typename Op::D::Cell, Op::kPerLane>(
      row<typename Op::D::Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        return Op::D::put(Op::f(Op::A::get(a[i]), Op::B::get(b[i]), Op::C::get(c[i])));
      });
  return Flow::next;
}

// Shapes shared by most operations.
template <class DT, class AT = DT, class BT = AT, class CT = DT, bool PerLane = false>
struct Shape {
  using D = Plain<DT>;
  using A = Plain<AT>;
  using B = Plain<BT>;
  using C = Plain<CT>;
  static constexpr bool kPerLane = PerLane;
};

// Lanes whose cell is all ones, as a mask.
[[gnu::always_inline]] inline std::uint32_t mask_of(const std::uint32_t* cells) {
  std::uint32_t mask = 0;
#if defined(__AVX2__)
  for (std::uint32_t i = 0; i < kLanes; i += 8) {
    const __m256 part = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(cells + i)));
    mask |= static_cast<std::uint32_t>(_mm256_movemask_ps(part)) << i;
  }
#else
  for (std::uint32_t i = 0; i < kLanes; i += 4) {
    const __m128 part = _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(cells + i)));
    mask |= static_cast<std::uint32_t>(_mm_movemask_ps(part)) << i;
  }
#endif
  return mask;
}

template <class Body>
[[gnu::always_inline]] inline std::uint32_t mask_where(Body body) {
  alignas(64) std::uint32_t cells[kLanes];
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) cells[i] = body(i) ? 0xffffffffU : 0;
  return mask_of(cells);
}

[[gnu::always_inline]] inline void set_predicate(Warp& warp, std::uint32_t operand, std::uint32_t value) {
  std::uint32_t* p = row<std::uint32_t>(warp, operand);
  *p = (*p & ~warp.exec) | (value & warp.exec);
}

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
