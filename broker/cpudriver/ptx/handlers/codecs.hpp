// SPDX-License-Identifier: Apache-2.0
//
// How a value lies in a lane of its row. In the namespace of the instruction set, as lanes.hpp says; include only from handlers/*.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

// For handlers.
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

// How a value lies in its row: 8- and 16-bit ones zero-extended in 32 bits.
template <std::size_t Bytes>
struct CellOf {
  using type = std::uint32_t;
};
template <>
struct CellOf<8> {
  using type = std::uint64_t;
};
template <class T>
struct BitsOf {
  using type = T;
};
template <>
struct BitsOf<float> {
  using type = std::uint32_t;
};
template <>
struct BitsOf<double> {
  using type = std::uint64_t;
};

template <class T>
struct Plain {  // A codec: the C++ value, its cell, and the way between.
  using Value = T;
  using Cell = typename CellOf<sizeof(T)>::type;
  [[gnu::always_inline]] static T get(Cell cell) {
    if constexpr (sizeof(T) == sizeof(Cell))
      return __builtin_bit_cast(T, cell);
    else
      return static_cast<T>(cell);
  }
  [[gnu::always_inline]] static Cell put(T value) {
    if constexpr (sizeof(T) == sizeof(Cell))
      return __builtin_bit_cast(Cell, value);
    else if constexpr (sizeof(T) == 2)
      return static_cast<std::uint16_t>(value);
    else
      return static_cast<std::uint8_t>(value);
  }
};

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
