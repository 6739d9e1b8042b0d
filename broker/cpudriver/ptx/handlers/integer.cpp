// SPDX-License-Identifier: Apache-2.0
//
// Integer arithmetic. Wraps as PTX says: all sums and products are formed unsigned.
#include "broker/cpudriver/ptx/handlers/integers.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

template <class T>
struct Add : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b)); }
};
template <class T>
struct Sub : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b)); }
};
template <class T>
struct MulLo : Shape<T> {
  static T f(T a, T b) { return mul_lo(a, b); }
};
template <class T>
struct MulHi : Shape<T> {
  static T f(T a, T b) { return mul_hi(a, b); }
};
template <class T>
struct MulWide : Shape<Wide<T>, T> {
  static Wide<T> f(T a, T b) { return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b); }
};
template <class T>
struct MadLo : Shape<T> {
  static T f(T a, T b, T c) { return static_cast<T>(static_cast<Unsigned<T>>(mul_lo(a, b)) + static_cast<Unsigned<T>>(c)); }
};
template <class T>
struct MadHi : Shape<T> {
  static T f(T a, T b, T c) { return static_cast<T>(static_cast<Unsigned<T>>(mul_hi(a, b)) + static_cast<Unsigned<T>>(c)); }
};
template <class T>
struct MadWide : Shape<Wide<T>, T> {
  static Wide<T> f(T a, T b, Wide<T> c) {
    using U = Unsigned<Wide<T>>;
    return static_cast<Wide<T>>(static_cast<U>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) + static_cast<U>(c));
  }
  using C = Plain<Wide<T>>;
};
struct AddSat : Shape<s32> {
  static s32 f(s32 a, s32 b) {
    const s64 r = s64{a} + b;
    return static_cast<s32>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
  }
};
struct SubSat : Shape<s32> {
  static s32 f(s32 a, s32 b) {
    const s64 r = s64{a} - b;
    return static_cast<s32>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
  }
};
struct MadHiSat : Shape<s32> {
  static s32 f(s32 a, s32 b, s32 c) {
    const s64 r = s64{mul_hi(a, b)} + c;
    return static_cast<s32>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
  }
};
// 24-bit products: the low halves of the operands, sign- or zero-extended.
template <class T>
T low24(T v) {
  return kIsSigned<T> ? static_cast<T>(static_cast<s32>(static_cast<u32>(v) << 8) >> 8) : static_cast<T>(static_cast<u32>(v) & 0xffffff);
}
template <class T>
struct Mul24Lo : Shape<T> {
  static T f(T a, T b) { return static_cast<T>(static_cast<Wide<T>>(low24(a)) * static_cast<Wide<T>>(low24(b))); }
};
template <class T>
struct Mul24Hi : Shape<T> {
  static T f(T a, T b) { return static_cast<T>((static_cast<Wide<T>>(low24(a)) * static_cast<Wide<T>>(low24(b))) >> 16); }
};
template <class T>
struct Mad24Lo : Shape<T> {
  static T f(T a, T b, T c) { return static_cast<T>(static_cast<u32>(Mul24Lo<T>::f(a, b)) + static_cast<u32>(c)); }
};
template <class T>
struct Mad24Hi : Shape<T> {
  static T f(T a, T b, T c) { return static_cast<T>(static_cast<u32>(Mul24Hi<T>::f(a, b)) + static_cast<u32>(c)); }
};

// Division by zero and MININT / -1 give what the hardware gives: all ones, and the dividend.
template <class T>
struct Div : Shape<T, T, T, T, true> {
  static T f(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (kIsSigned<T>)
      if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Rem : Shape<T, T, T, T, true> {
  static T f(T a, T b) {
    if (b == 0) return a;
    if constexpr (kIsSigned<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};
template <class T>
struct Abs : Shape<T> {
  static T f(T a) { return a < 0 ? static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)) : a; }
};
template <class T>
struct Neg : Shape<T> {
  static T f(T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); }
};
template <class T>
struct Min : Shape<T> {
  static T f(T a, T b) { return a < b ? a : b; }
};
template <class T>
struct Max : Shape<T> {
  static T f(T a, T b) { return a > b ? a : b; }
};
struct MinRelu : Shape<s32> {
  static s32 f(s32 a, s32 b) {
    const s32 m = a < b ? a : b;
    return m < 0 ? 0 : m;
  }
};
struct MaxRelu : Shape<s32> {
  static s32 f(s32 a, s32 b) {
    const s32 m = a > b ? a : b;
    return m < 0 ? 0 : m;
  }
};
template <class T>
struct Sad : Shape<T> {
  static T f(T a, T b, T c) {
    const Unsigned<T> difference = static_cast<Unsigned<T>>(a > b ? static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b)
                                                                  : static_cast<Unsigned<T>>(b) - static_cast<Unsigned<T>>(a));
    return static_cast<T>(difference + static_cast<Unsigned<T>>(c));
  }
};

// Chooses by type; `Pick` gives the handler for one C++ type.
template <template <class> class Pick>
Handler by_type(Type type) {
  switch (type) {
    case Type::u16: return Pick<u16>::handler();
    case Type::s16: return Pick<s16>::handler();
    case Type::u32: return Pick<u32>::handler();
    case Type::s32: return Pick<s32>::handler();
    case Type::u64: return Pick<u64>::handler();
    case Type::s64: return Pick<s64>::handler();
    default: return nullptr;
  }
}
#define PICK(name, shape)                               \
  template <class T>                                    \
  struct Pick##name {                                   \
    static Handler handler() { return shape<name<T>>; } \
  }
PICK(Add, map2);
PICK(Sub, map2);
PICK(MulLo, map2);
PICK(MulHi, map2);
PICK(MadLo, map3);
PICK(MadHi, map3);
PICK(Div, map2);
PICK(Rem, map2);
PICK(Min, map2);
PICK(Max, map2);
PICK(Sad, map3);
#undef PICK

template <template <class> class F, bool Three>
Handler narrow_only(Type type) {  // .wide and 24-bit forms: 16- and 32-bit sources.
  constexpr auto shape = [](auto op) -> Handler {
    using O = decltype(op);
    if constexpr (Three)
      return map3<O>;
    else
      return map2<O>;
  };
  switch (type) {
    case Type::u16: return shape(F<u16>{});
    case Type::s16: return shape(F<s16>{});
    case Type::u32: return shape(F<u32>{});
    case Type::s32: return shape(F<s32>{});
    default: return nullptr;
  }
}

Handler select_multiply(const Form& f) {
  const bool three = f.op == Op::mad || f.op == Op::mad24;
  const bool is24 = f.op == Op::mul24 || f.op == Op::mad24;
  if (is24) {
    if (f.has(Mod::sat) || (f.type != Type::u32 && f.type != Type::s32)) return nullptr;
    if (f.has(Mod::hi)) return three ? narrow_only<Mad24Hi, true>(f.type) : narrow_only<Mul24Hi, false>(f.type);
    if (f.has(Mod::lo)) return three ? narrow_only<Mad24Lo, true>(f.type) : narrow_only<Mul24Lo, false>(f.type);
    return nullptr;
  }
  if (f.has(Mod::sat)) return three && f.has(Mod::hi) && f.type == Type::s32 ? map3<MadHiSat> : nullptr;
  if (f.has(Mod::wide)) return three ? narrow_only<MadWide, true>(f.type) : narrow_only<MulWide, false>(f.type);
  if (f.has(Mod::hi)) return three ? by_type<PickMadHi>(f.type) : by_type<PickMulHi>(f.type);
  if (f.has(Mod::lo)) return three ? by_type<PickMadLo>(f.type) : by_type<PickMulLo>(f.type);
  return nullptr;
}

Handler select_signed(const Form& f) {
  const bool abs = f.op == Op::abs;
  switch (f.type) {
    case Type::s16: return abs ? map1<Abs<s16>> : map1<Neg<s16>>;
    case Type::s32: return abs ? map1<Abs<s32>> : map1<Neg<s32>>;
    case Type::s64: return abs ? map1<Abs<s64>> : map1<Neg<s64>>;
    default: return nullptr;
  }
}

}  // namespace

Handler select_integer(const Form& f) {
  const bool in_chain = f.has(Mod::cc) || f.op == Op::addc || f.op == Op::subc || f.op == Op::madc;
  if (in_chain) return select_carry(f);
  const bool sat = f.has(Mod::sat);
  if (sat && (f.op == Op::add || f.op == Op::sub)) {
    if (f.type != Type::s32) return nullptr;
    return f.op == Op::add ? map2<AddSat> : map2<SubSat>;
  }
  switch (f.op) {
    case Op::add: return by_type<PickAdd>(f.type);
    case Op::sub: return by_type<PickSub>(f.type);
    case Op::mul:
    case Op::mad:
    case Op::mul24:
    case Op::mad24: return select_multiply(f);
    case Op::div: return by_type<PickDiv>(f.type);
    case Op::rem: return by_type<PickRem>(f.type);
    case Op::abs:
    case Op::neg: return select_signed(f);
    case Op::min:
      if (f.has(Mod::relu)) return f.type == Type::s32 ? map2<MinRelu> : nullptr;
      return by_type<PickMin>(f.type);
    case Op::max:
      if (f.has(Mod::relu)) return f.type == Type::s32 ? map2<MaxRelu> : nullptr;
      return by_type<PickMax>(f.type);
    case Op::sad: return by_type<PickSad>(f.type);
    case Op::dp4a:
    case Op::dp2a: return select_dot(f);
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
