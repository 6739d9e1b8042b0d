// SPDX-License-Identifier: Apache-2.0
//
// Logic, shifts, moves and selection.
#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

template <class T>
struct And : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(a & b); }
};
template <class T>
struct Or : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(a | b); }
};
template <class T>
struct Xor : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(a ^ b); }
};
template <class T>
struct Not : Shape<T> {
  static T f(T a) { return static_cast<T>(~a); }
};
template <class T>
struct Cnot : Shape<T> {
  static T f(T a) { return a == 0 ? 1 : 0; }
};
template <class T>
struct Move : Shape<T> {
  static T f(T a) { return a; }
};

// Amounts are 32-bit and clamp at the width.
template <class T>
struct Shl : Shape<T, T, u32> {
  static T f(T a, u32 n) { return n >= sizeof(T) * 8 ? T{0} : static_cast<T>(a << (n & (sizeof(T) * 8 - 1))); }
};
template <class T>
struct Shr : Shape<T, T, u32> {
  static T f(T a, u32 n) {
    constexpr u32 kBits = sizeof(T) * 8;
    constexpr bool kSigned = static_cast<T>(-1) < T{0};
    if constexpr (kSigned)
      return static_cast<T>(a >> (n >= kBits ? kBits - 1 : n));
    else
      return n >= kBits ? T{0} : static_cast<T>(a >> (n & (kBits - 1)));
  }
};

u64 funnel(u32 lo, u32 hi) { return u64{hi} << 32 | lo; }
struct ShfLeftWrap : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) { return static_cast<u32>(funnel(a, b) << (c & 31) >> 32); }
};
struct ShfLeftClamp : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) { return c >= 32 ? a : ShfLeftWrap::f(a, b, c); }
};
struct ShfRightWrap : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) { return static_cast<u32>(funnel(a, b) >> (c & 31)); }
};
struct ShfRightClamp : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) { return c >= 32 ? b : ShfRightWrap::f(a, b, c); }
};

Flow lop3(Warp& warp, const Instruction& in) {
  const u32* a = row<const u32>(warp, in.a);
  const u32* b = row<const u32>(warp, in.b);
  const u32* c = row<const u32>(warp, in.c);
  const auto table = static_cast<u32>(in.imm);
  u32 minterm[8];
  for (u32 k = 0; k < 8; ++k) minterm[k] = (table >> k & 1) != 0 ? 0xffffffff : 0;
  store_lanes<u32, false>(
      row<u32>(warp, in.d), warp.exec, [&](u32 i) __attribute__((always_inline)) {
        const u32 x = a[i], y = b[i], z = c[i];
        return (minterm[7] & x & y & z) | (minterm[6] & x & y & ~z) | (minterm[5] & x & ~y & z) | (minterm[4] & x & ~y & ~z) |
               (minterm[3] & ~x & y & z) | (minterm[2] & ~x & y & ~z) | (minterm[1] & ~x & ~y & z) | (minterm[0] & ~x & ~y & ~z);
      });
  return Flow::next;
}

template <Mod Mode>
struct Prmt : Shape<u32, u32, u32, u32, true> {
  static u32 f(u32 a, u32 b, u32 c) {
    const u64 bytes = funnel(a, b);
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) {
      u32 selector = 0;
      const u32 n = c & 3;
      if constexpr (Mode == Mod::idx)
        selector = c >> (4 * i) & 15;
      else if constexpr (Mode == Mod::f4e)
        selector = n + i;
      else if constexpr (Mode == Mod::b4e)
        selector = (n - i) & 7;
      else if constexpr (Mode == Mod::rc8)
        selector = n;
      else if constexpr (Mode == Mod::ecl)
        selector = i > n ? i : n;
      else if constexpr (Mode == Mod::ecr)
        selector = i < n ? i : n;
      else
        selector = (n & 1) * 2 + (i & 1);
      u32 byte = static_cast<u32>(bytes >> (8 * (selector & 7))) & 0xff;
      if (selector >= 8) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};

template <class T>
Flow selp(Warp& warp, const Instruction& in) {
  const T* a = row<const T>(warp, in.a);
  const T* b = row<const T>(warp, in.b);
  u32 p = predicate(warp, in.c);
  if ((in.flags & kFlagNegateC) != 0) p = ~p;
  store_lanes<T, false>(
      row<T>(warp, in.d), warp.exec, [&](u32 i) __attribute__((always_inline)) { return (p & kLaneBit[i]) != 0 ? a[i] : b[i]; });
  return Flow::next;
}

// slct.dtype.s32 / .f32: a where c >= 0 (NaN selects b).
template <class T, bool Float>
Flow slct(Warp& warp, const Instruction& in) {
  const T* a = row<const T>(warp, in.a);
  const T* b = row<const T>(warp, in.b);
  const u32* c = row<const u32>(warp, in.c);
  store_lanes<T, false>(
      row<T>(warp, in.d), warp.exec, [&](u32 i) __attribute__((always_inline)) {
        const bool first = Float ? __builtin_bit_cast(float, c[i]) >= 0.0F : static_cast<s32>(c[i]) >= 0;
        return first ? a[i] : b[i];
      });
  return Flow::next;
}

// Predicates are masks.
u32 source_predicate(const Warp& warp, u32 operand, bool negate) { return negate ? ~predicate(warp, operand) : predicate(warp, operand); }
template <Op Which>
Flow predicate_logic(Warp& warp, const Instruction& in) {
  const u32 a = source_predicate(warp, in.a, (in.flags & kFlagNegateA) != 0);
  u32 value = a;
  if constexpr (Which == Op::not_)
    value = ~a;
  else if constexpr (Which != Op::mov) {
    const u32 b = source_predicate(warp, in.b, (in.flags & kFlagNegateB) != 0);
    value = Which == Op::and_ ? (a & b) : Which == Op::or_ ? (a | b) : (a ^ b);
  }
  set_predicate(warp, in.d, value);
  return Flow::next;
}

// mov.b64 {lo, hi}, d  and back. Elements of 8 to 32 bits; the wide value has `count` of them.
template <class Part, class WholeCell>
Flow pack(Warp& warp, const Instruction& in) {
  const u32* parts = warp.lists + in.aux;
  alignas(64) WholeCell whole[kLanes] = {};
  for (u32 k = 0; k < in.count; ++k) {
    const u32* part = row<const u32>(warp, parts[k]);
    for (u32 i = 0; i < kLanes; ++i) whole[i] |= static_cast<WholeCell>(static_cast<Part>(part[i])) << (8 * sizeof(Part) * k);
  }
  blend(row<WholeCell>(warp, in.d), whole, warp.exec);
  return Flow::next;
}
template <class Part, class WholeCell>
Flow unpack(Warp& warp, const Instruction& in) {
  const u32* parts = warp.lists + in.aux;
  alignas(64) WholeCell whole[kLanes];
  std::memcpy(whole, row<const WholeCell>(warp, in.a), sizeof whole);
  for (u32 k = 0; k < in.count; ++k) {
    if (parts[k] == kNoOperand) continue;
    alignas(64) u32 part[kLanes];
    for (u32 i = 0; i < kLanes; ++i) part[i] = static_cast<Part>(whole[i] >> (8 * sizeof(Part) * k));
    blend(row<u32>(warp, parts[k]), part, warp.exec);
  }
  return Flow::next;
}

template <template <class> class F>
Handler bitwise1(Type t) {
  switch (t) {
    case Type::b16: return map1<F<u16>>;
    case Type::b32: return map1<F<u32>>;
    case Type::b64: return map1<F<u64>>;
    default: return nullptr;
  }
}
template <template <class> class F>
Handler bitwise2(Type t) {
  switch (t) {
    case Type::b16: return map2<F<u16>>;
    case Type::b32: return map2<F<u32>>;
    case Type::b64: return map2<F<u64>>;
    default: return nullptr;
  }
}

Handler select_shift_right(Type t) {
  switch (t) {
    case Type::b16:
    case Type::u16: return map2<Shr<u16>>;
    case Type::b32:
    case Type::u32: return map2<Shr<u32>>;
    case Type::b64:
    case Type::u64: return map2<Shr<u64>>;
    case Type::s16: return map2<Shr<s16>>;
    case Type::s32: return map2<Shr<s32>>;
    case Type::s64: return map2<Shr<s64>>;
    default: return nullptr;
  }
}

Handler select_prmt(const Form& f) {
  if (f.has(Mod::f4e)) return map3<Prmt<Mod::f4e>>;
  if (f.has(Mod::b4e)) return map3<Prmt<Mod::b4e>>;
  if (f.has(Mod::rc8)) return map3<Prmt<Mod::rc8>>;
  if (f.has(Mod::ecl)) return map3<Prmt<Mod::ecl>>;
  if (f.has(Mod::ecr)) return map3<Prmt<Mod::ecr>>;
  if (f.has(Mod::rc16)) return map3<Prmt<Mod::rc16>>;
  return map3<Prmt<Mod::idx>>;
}

Handler select_shf(const Form& f) {
  const bool wrap = f.has(Mod::wrap);
  if (f.type != Type::b32 || wrap == f.has(Mod::clamp) || f.has(Mod::left) == f.has(Mod::right)) return nullptr;
  if (f.has(Mod::left)) return wrap ? map3<ShfLeftWrap> : map3<ShfLeftClamp>;
  return wrap ? map3<ShfRightWrap> : map3<ShfRightClamp>;
}

Handler select_slct(const Form& f) {
  const bool is_float = f.type == Type::f32;
  if (!is_float && f.type != Type::s32) return nullptr;
  if (size_of(f.type2) == 8) return is_float ? slct<u64, true> : slct<u64, false>;
  return is_float ? slct<u32, true> : slct<u32, false>;
}

Handler select_predicate_logic(Op op) {
  switch (op) {
    case Op::mov: return predicate_logic<Op::mov>;
    case Op::not_: return predicate_logic<Op::not_>;
    case Op::and_: return predicate_logic<Op::and_>;
    case Op::or_: return predicate_logic<Op::or_>;
    case Op::xor_: return predicate_logic<Op::xor_>;
    default: return nullptr;
  }
}

}  // namespace

Handler select_bits(const Form& f) {
  if (f.type == Type::pred) return select_predicate_logic(f.op);
  switch (f.op) {
    case Op::and_: return bitwise2<And>(f.type);
    case Op::or_: return bitwise2<Or>(f.type);
    case Op::xor_: return bitwise2<Xor>(f.type);
    case Op::not_: return bitwise1<Not>(f.type);
    case Op::cnot: return bitwise1<Cnot>(f.type);
    case Op::mov: return size_of(f.type) == 8 ? map1<Move<u64>> : size_of(f.type) >= 2 ? map1<Move<u32>> : nullptr;
    case Op::shl: return bitwise2<Shl>(f.type);
    case Op::shr: return select_shift_right(f.type);
    case Op::shf: return select_shf(f);
    case Op::lop3: return f.type == Type::b32 ? lop3 : nullptr;
    case Op::prmt: return f.type == Type::b32 ? select_prmt(f) : nullptr;
    case Op::selp: return size_of(f.type) == 8 ? selp<u64> : size_of(f.type) >= 2 ? selp<u32> : nullptr;
    case Op::slct: return select_slct(f);
    default: return nullptr;
  }
}

// `elements` parts make a value of `bytes` bytes.
Handler select_pack(std::uint32_t bytes, std::uint32_t elements, bool is_pack) {
  const std::uint32_t part = elements == 0 ? 0 : bytes / elements;
  if (bytes == 8 && part == 4) return is_pack ? pack<u32, u64> : unpack<u32, u64>;
  if (bytes == 8 && part == 2) return is_pack ? pack<u16, u64> : unpack<u16, u64>;
  if (bytes == 4 && part == 2) return is_pack ? pack<u16, u32> : unpack<u16, u32>;
  if (bytes == 4 && part == 1) return is_pack ? pack<std::uint8_t, u32> : unpack<std::uint8_t, u32>;
  if (bytes == 2 && part == 1) return is_pack ? pack<std::uint8_t, u32> : unpack<std::uint8_t, u32>;
  return nullptr;
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
