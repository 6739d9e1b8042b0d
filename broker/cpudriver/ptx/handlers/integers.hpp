// SPDX-License-Identifier: Apache-2.0
//
// Integers of all widths: which type is unsigned, which is twice as wide, and the halves of a product. Include only from handlers/*.cpp.
#pragma once

#include <cstdint>

#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

__extension__ using u128 = unsigned __int128;  // For the high halves of 64-bit products.
__extension__ using s128 = __int128;

template <class T>
struct UnsignedOf;
template <>
struct UnsignedOf<u16> {
  using type = u16;
  using wide = u32;
};
template <>
struct UnsignedOf<s16> {
  using type = u16;
  using wide = s32;
};
template <>
struct UnsignedOf<u32> {
  using type = u32;
  using wide = u64;
};
template <>
struct UnsignedOf<s32> {
  using type = u32;
  using wide = s64;
};
template <>
struct UnsignedOf<u64> {
  using type = u64;
  using wide = u128;
};
template <>
struct UnsignedOf<s64> {
  using type = u64;
  using wide = s128;
};
template <class T>
using Unsigned = typename UnsignedOf<T>::type;
template <class T>
using Wide = typename UnsignedOf<T>::wide;
template <class T>
constexpr bool kIsSigned = static_cast<T>(-1) < T{0};

template <class T>
T mul_lo(T a, T b) {
  if constexpr (sizeof(T) == 2)
    return static_cast<T>(static_cast<u32>(static_cast<Unsigned<T>>(a)) * static_cast<Unsigned<T>>(b));
  else
    return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
}
template <class T>
T mul_hi(T a, T b) {
  return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (sizeof(T) * 8));
}

}  // namespace
}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
