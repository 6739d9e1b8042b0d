// SPDX-License-Identifier: Apache-2.0
//
// Bits counted, found, reversed; fields of bits taken out and put in.
#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

u32 count_ones(u64 v) {  // Vectorises, unlike the builtin.
  v = v - (v >> 1 & 0x5555555555555555);
  v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
  v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
  return static_cast<u32>(v * 0x0101010101010101 >> 56);
}
u32 leading_zeros(u64 v) { return v == 0 ? 64 : static_cast<u32>(__builtin_clzll(v)); }
template <class T>
struct Popc : Shape<u32, T> {
  static u32 f(T a) { return count_ones(a); }
};
template <class T>
struct Clz : Shape<u32, T, T, u32, true> {
  static u32 f(T a) { return leading_zeros(a) - static_cast<u32>(64 - sizeof(T) * 8); }
};
template <class T>
T reverse(T a) {
  u64 v = a;
  v = (v >> 1 & 0x5555555555555555) | (v & 0x5555555555555555) << 1;
  v = (v >> 2 & 0x3333333333333333) | (v & 0x3333333333333333) << 2;
  v = (v >> 4 & 0x0f0f0f0f0f0f0f0f) | (v & 0x0f0f0f0f0f0f0f0f) << 4;
  return static_cast<T>(__builtin_bswap64(v) >> (64 - sizeof(T) * 8));
}
template <class T>
struct Brev : Shape<T, T, T, T, true> {
  static T f(T a) { return reverse(a); }
};
template <class T, class U, bool Shift>
struct Bfind : Shape<u32, T, T, u32, true> {
  static u32 f(T a) {
    constexpr u32 kBits = sizeof(T) * 8;
    const U bits = static_cast<U>(a < T{0} ? static_cast<U>(~static_cast<U>(a)) : static_cast<U>(a));
    if (bits == 0) return 0xffffffff;
    const u32 position = 63 - leading_zeros(bits);
    return Shift ? kBits - 1 - position : position;
  }
};
template <class T, class U>
struct Bfe : Shape<T, T, u32, u32, true> {
  static T f(T a, u32 b, u32 c) {
    constexpr u32 kBits = sizeof(T) * 8;
    constexpr bool kSigned = static_cast<T>(-1) < T{0};
    const u32 pos = b & 0xff;
    const u32 len = c & 0xff;
    if (len == 0) return 0;
    const u32 last = pos + len - 1 < kBits - 1 ? pos + len - 1 : kBits - 1;
    const bool fill = kSigned && (static_cast<U>(a) >> last & 1) != 0;
    U value = pos < kBits ? static_cast<U>(static_cast<U>(a) >> pos) : U{0};
    const u32 kept = pos < kBits ? (len < kBits - pos ? len : kBits - pos) : 0;  // Bits that come from a.
    const U mask = kept >= kBits ? ~U{0} : static_cast<U>((U{1} << kept) - 1);
    value &= mask;
    if (fill) value |= static_cast<U>(~mask);
    return static_cast<T>(value);
  }
};
template <class T>
struct Bfi {  // d, a (source), b (base), c (position), e (length)
  static T f(T a, T b, u32 c, u32 e) {
    constexpr u32 kBits = sizeof(T) * 8;
    const u32 pos = c & 0xff;
    const u32 len = e & 0xff;
    if (len == 0 || pos >= kBits) return b;
    const T ones = len >= kBits ? ~T{0} : static_cast<T>((T{1} << len) - 1);
    const T mask = static_cast<T>(ones << pos);
    return static_cast<T>((b & ~mask) | (static_cast<T>(a << pos) & mask));
  }
};
template <class T>
Flow bfi(Warp& warp, const Instruction& in) {
  const T* a = row<const T>(warp, in.a);
  const T* b = row<const T>(warp, in.b);
  const u32* c = row<const u32>(warp, in.c);
  const u32* e = row<const u32>(warp, in.e);
  store_lanes<T, true>(row<T>(warp, in.d), warp.exec, [&](u32 i) { return Bfi<T>::f(a[i], b[i], c[i], e[i]); });
  return Flow::next;
}
template <bool Wrap>
struct Bmsk : Shape<u32> {
  static u32 f(u32 a, u32 b) {
    if (Wrap) {
      a &= 31;
      b &= 31;
    }
    if (a >= 32 || b == 0) return 0;
    const u32 ones = b >= 32 ? 0xffffffff : (1U << b) - 1;
    return ones << a;
  }
};

// fns d, mask, base, n: the n-th set bit counted from `base`, upwards for n > 0, downwards for n < 0.
struct Fns : Shape<u32, u32, u32, u32, true> {
  static u32 f(u32 mask, u32 base, u32 offset) {
    const auto n = static_cast<s32>(offset);
    const auto start = static_cast<s32>(base & 31);
    if (n == 0) return (mask >> start & 1) != 0 ? static_cast<u32>(start) : 0xffffffff;
    const s32 step = n > 0 ? 1 : -1;
    s32 left = n > 0 ? n : -n;
    for (s32 at = start; at >= 0 && at < 32 && left > 0; at += step) {
      if ((mask >> at & 1) != 0 && --left == 0) return static_cast<u32>(at);
    }
    return 0xffffffff;
  }
};

Handler select_bfind(const Form& f) {
  const bool shift = f.has(Mod::shiftamt);
  switch (f.type) {
    case Type::u32: return shift ? map1<Bfind<u32, u32, true>> : map1<Bfind<u32, u32, false>>;
    case Type::s32: return shift ? map1<Bfind<s32, u32, true>> : map1<Bfind<s32, u32, false>>;
    case Type::u64: return shift ? map1<Bfind<u64, u64, true>> : map1<Bfind<u64, u64, false>>;
    case Type::s64: return shift ? map1<Bfind<s64, u64, true>> : map1<Bfind<s64, u64, false>>;
    default: return nullptr;
  }
}

Handler select_bfe(Type t) {
  switch (t) {
    case Type::u32: return map3<Bfe<u32, u32>>;
    case Type::s32: return map3<Bfe<s32, u32>>;
    case Type::u64: return map3<Bfe<u64, u64>>;
    case Type::s64: return map3<Bfe<s64, u64>>;
    default: return nullptr;
  }
}

}  // namespace

Handler select_bit_fields(const Form& f) {
  switch (f.op) {
    case Op::popc: return f.type == Type::b64 ? map1<Popc<u64>> : f.type == Type::b32 ? map1<Popc<u32>> : nullptr;
    case Op::clz: return f.type == Type::b64 ? map1<Clz<u64>> : f.type == Type::b32 ? map1<Clz<u32>> : nullptr;
    case Op::brev: return f.type == Type::b64 ? map1<Brev<u64>> : f.type == Type::b32 ? map1<Brev<u32>> : nullptr;
    case Op::bfind: return select_bfind(f);
    case Op::bfe: return select_bfe(f.type);
    case Op::bfi: return f.type == Type::b64 ? bfi<u64> : f.type == Type::b32 ? bfi<u32> : nullptr;
    case Op::bmsk:
      if (f.type != Type::b32 || f.has(Mod::wrap) == f.has(Mod::clamp)) return nullptr;
      return f.has(Mod::wrap) ? map2<Bmsk<true>> : map2<Bmsk<false>>;
    case Op::fns: return f.type == Type::b32 ? map3<Fns> : nullptr;
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
