// SPDX-License-Identifier: Apache-2.0
//
// Integers beyond one register: the extended-precision chain, and dot products of bytes and halves.
#include "broker/cpudriver/ptx/handlers/integers.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

using u8 = std::uint8_t;

// dp4a.atype.btype: four byte products and a sum.
template <bool SignedA, bool SignedB>
struct Dp4a : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) {
    for (u32 i = 0; i < 32; i += 8) {
      const s32 x = SignedA ? static_cast<std::int8_t>(a >> i) : static_cast<u8>(a >> i);
      const s32 y = SignedB ? static_cast<std::int8_t>(b >> i) : static_cast<u8>(b >> i);
      c += static_cast<u32>(x * y);
    }
    return c;
  }
};
template <bool SignedA, bool SignedB, u32 Byte>
struct Dp2a : Shape<u32> {
  static u32 f(u32 a, u32 b, u32 c) {
    for (u32 i = 0; i < 2; ++i) {
      const s32 x = SignedA ? static_cast<s16>(a >> (16 * i)) : static_cast<u16>(a >> (16 * i));
      const s32 y = SignedB ? static_cast<std::int8_t>(b >> (Byte + 8 * i)) : static_cast<u8>(b >> (Byte + 8 * i));
      c += static_cast<u32>(x) * static_cast<u32>(y);
    }
    return c;
  }
};

// The extended-precision chain. `In` reads CC.CF, `Out` writes it.
template <class T, bool In, bool Out, bool Subtract>
Flow carry_chain(Warp& warp, const Instruction& in) {
  const T* a = row<const T>(warp, in.a);
  const T* b = row<const T>(warp, in.b);
  T* d = row<T>(warp, in.d);
  for (u32 rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<u32>(__builtin_ctz(rest));
    const T carry_in = In ? (warp.carry >> i & 1) : 0;
    T sum = 0;
    bool carry = false;
    if constexpr (Subtract) {
      T part = 0;
      carry = __builtin_sub_overflow(a[i], b[i], &part);
      carry |= __builtin_sub_overflow(part, carry_in, &sum);
    } else {
      T part = 0;
      carry = __builtin_add_overflow(a[i], b[i], &part);
      carry |= __builtin_add_overflow(part, carry_in, &sum);
    }
    d[i] = sum;
    if constexpr (Out) warp.carry = (warp.carry & ~(1U << i)) | (u32{carry} << i);
  }
  return Flow::next;
}

template <class T, bool Hi, bool In, bool Out>
Flow carry_mad(Warp& warp, const Instruction& in) {
  using U = Unsigned<T>;
  const T* a = row<const T>(warp, in.a);
  const T* b = row<const T>(warp, in.b);
  const T* c = row<const T>(warp, in.c);
  T* d = row<T>(warp, in.d);
  for (u32 rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<u32>(__builtin_ctz(rest));
    const U product = static_cast<U>(Hi ? mul_hi(a[i], b[i]) : mul_lo(a[i], b[i]));
    U part = 0;
    U sum = 0;
    bool carry = __builtin_add_overflow(product, static_cast<U>(c[i]), &part);
    carry |= __builtin_add_overflow(part, static_cast<U>(In ? (warp.carry >> i & 1) : 0), &sum);
    d[i] = static_cast<T>(sum);
    if constexpr (Out) warp.carry = (warp.carry & ~(1U << i)) | (u32{carry} << i);
  }
  return Flow::next;
}

template <class T>
Handler carry_of(const Form& f, Op op) {
  using U = Unsigned<T>;
  const bool out = f.has(Mod::cc);
  if (op == Op::add) return out ? carry_chain<U, false, true, false> : nullptr;
  if (op == Op::sub) return out ? carry_chain<U, false, true, true> : nullptr;
  if (op == Op::addc) return out ? carry_chain<U, true, true, false> : carry_chain<U, true, false, false>;
  if (op == Op::subc) return out ? carry_chain<U, true, true, true> : carry_chain<U, true, false, true>;
  const bool hi = f.has(Mod::hi);
  if (!hi && !f.has(Mod::lo)) return nullptr;
  if (op == Op::mad) return hi ? carry_mad<T, true, false, true> : carry_mad<T, false, false, true>;
  if (out) return hi ? carry_mad<T, true, true, true> : carry_mad<T, false, true, true>;
  return hi ? carry_mad<T, true, true, false> : carry_mad<T, false, true, false>;
}

}  // namespace

Handler select_carry(const Form& f) {
  switch (f.type) {
    case Type::u32: return carry_of<u32>(f, f.op);
    case Type::s32: return f.op == Op::mad || f.op == Op::madc ? nullptr : carry_of<u32>(f, f.op);
    case Type::u64: return carry_of<u64>(f, f.op);
    case Type::s64: return f.op == Op::mad || f.op == Op::madc ? nullptr : carry_of<u64>(f, f.op);
    default: return nullptr;
  }
}

Handler select_dot(const Form& f) {
  const bool a = f.type2 == Type::s32;
  const bool b = f.type == Type::s32;
  if ((!a && f.type2 != Type::u32) || (!b && f.type != Type::u32)) return nullptr;
  if (f.op == Op::dp4a) return a ? (b ? map3<Dp4a<true, true>> : map3<Dp4a<true, false>>) : (b ? map3<Dp4a<false, true>> : map3<Dp4a<false, false>>);
  if (f.has(Mod::hi))
    return a ? (b ? map3<Dp2a<true, true, 16>> : map3<Dp2a<true, false, 16>>) : (b ? map3<Dp2a<false, true, 16>> : map3<Dp2a<false, false, 16>>);
  return a ? (b ? map3<Dp2a<true, true, 0>> : map3<Dp2a<true, false, 0>>) : (b ? map3<Dp2a<false, true, 0>> : map3<Dp2a<false, false, 0>>);
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
