// SPDX-License-Identifier: Apache-2.0
//
// setp, set and testp.
#include "broker/cpudriver/ptx/handlers/half.hpp"
#include "broker/cpudriver/ptx/handlers/rounding.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

struct Eq {
  template <class T>
  static bool f(T a, T b) {
    return a == b;
  }
};
struct Ne {  // False for NaN.
  template <class T>
  static bool f(T a, T b) {
    return a < b || a > b;
  }
};
struct Lt {
  template <class T>
  static bool f(T a, T b) {
    return a < b;
  }
};
struct Le {
  template <class T>
  static bool f(T a, T b) {
    return a <= b;
  }
};
struct Num {
  template <class T>
  static bool f(T a, T b) {
    return a == a && b == b;
  }
};

// The others follow from these, with the operands the other way round or the answer inverted.
template <class F, bool Swapped, bool Inverted>
struct Relation {
  using Basic = F;
  static constexpr bool kSwapped = Swapped;
  static constexpr bool kInverted = Inverted;
};
template <class F>
using As = Relation<F, false, false>;
template <class F>
using Swapped = Relation<F, true, false>;
template <class F>
using Not = Relation<F, false, true>;
template <class F>
using NotSwapped = Relation<F, true, true>;

template <class Codec>
struct FlushingCodec {
  using Value = float;
  using Cell = std::uint32_t;
  [[gnu::always_inline]] static float get(Cell c) { return flush(Codec::get(c)); }
};

// Compiled once for each basic relation of a type, not for each handler: calling it costs little beside its 32 lanes.
template <class Codec, class F>
[[gnu::noinline]] std::uint32_t compare_rows(const typename Codec::Cell* a, const typename Codec::Cell* b) {
  return mask_where([&](std::uint32_t i) __attribute__((always_inline)) { return F::f(Codec::get(a[i]), Codec::get(b[i])); });
}

template <class Codec, class R>
[[gnu::always_inline]] inline std::uint32_t compare(const Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Codec::Cell>(warp, R::kSwapped ? in.b : in.a);
  const auto* b = row<const typename Codec::Cell>(warp, R::kSwapped ? in.a : in.b);
  const std::uint32_t mask = compare_rows<Codec, typename R::Basic>(a, b);
  return R::kInverted ? ~mask : mask;
}

// The optional third operand, combined as imm says: 0 none, 1 and, 2 or, 3 xor.
[[gnu::always_inline]] inline std::uint32_t combine(const Warp& warp, const Instruction& in, std::uint32_t value) {
  if (in.imm == 0) return value;
  std::uint32_t c = predicate(warp, in.c);
  if ((in.flags & kFlagNegateC) != 0) c = ~c;
  return in.imm == 1 ? (value & c) : in.imm == 2 ? (value | c) : (value ^ c);
}

[[gnu::noinline]] Flow store_predicates(Warp& warp, const Instruction& in, std::uint32_t value) {
  const std::uint32_t first = combine(warp, in, value);
  const std::uint32_t second = in.e == kNoOperand ? 0 : combine(warp, in, ~value);
  if (in.d != kNoOperand) set_predicate(warp, in.d, first);
  if (in.e != kNoOperand) set_predicate(warp, in.e, second);
  return Flow::next;
}

[[gnu::noinline]] Flow store_truth(Warp& warp, const Instruction& in, std::uint32_t value, std::uint32_t if_true) {
  const std::uint32_t combined = combine(warp, in, value);
  store_lanes<std::uint32_t, false>(
      row<std::uint32_t>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return (combined & kLaneBit[i]) != 0 ? if_true : 0U; });
  return Flow::next;
}

template <class Codec, class R>
Flow setp(Warp& warp, const Instruction& in) {
  return store_predicates(warp, in, compare<Codec, R>(warp, in));
}

template <class Codec, class R, bool ToFloat>
Flow set(Warp& warp, const Instruction& in) {
  return store_truth(warp, in, compare<Codec, R>(warp, in), ToFloat ? 0x3f800000 : 0xffffffff);
}

template <class Codec, class R>
Handler finish(const Form& f) {
  if (f.op == Op::setp) return setp<Codec, R>;
  if (f.type2 == Type::f32) return set<Codec, R, true>;
  return f.type2 == Type::u32 || f.type2 == Type::s32 ? set<Codec, R, false> : nullptr;
}

template <class Codec>
Handler pick_integer(const Form& f, bool is_signed, bool is_bits) {
  if (f.has(Mod::eq)) return finish<Codec, As<Eq>>(f);
  if (f.has(Mod::ne)) return finish<Codec, Not<Eq>>(f);
  if (is_bits) return nullptr;
  if (f.has(Mod::lt) || (!is_signed && f.has(Mod::lo))) return finish<Codec, As<Lt>>(f);
  if (f.has(Mod::le) || (!is_signed && f.has(Mod::ls))) return finish<Codec, NotSwapped<Lt>>(f);
  if (f.has(Mod::gt) || (!is_signed && f.has(Mod::hi))) return finish<Codec, Swapped<Lt>>(f);
  if (f.has(Mod::ge) || (!is_signed && f.has(Mod::hs))) return finish<Codec, Not<Lt>>(f);
  return nullptr;
}

template <class Codec>
Handler pick_float(const Form& f) {
  if (f.has(Mod::eq)) return finish<Codec, As<Eq>>(f);
  if (f.has(Mod::ne)) return finish<Codec, As<Ne>>(f);
  if (f.has(Mod::lt)) return finish<Codec, As<Lt>>(f);
  if (f.has(Mod::le)) return finish<Codec, As<Le>>(f);
  if (f.has(Mod::gt)) return finish<Codec, Swapped<Lt>>(f);
  if (f.has(Mod::ge)) return finish<Codec, Swapped<Le>>(f);
  if (f.has(Mod::equ)) return finish<Codec, Not<Ne>>(f);
  if (f.has(Mod::neu)) return finish<Codec, Not<Eq>>(f);
  if (f.has(Mod::ltu)) return finish<Codec, NotSwapped<Le>>(f);
  if (f.has(Mod::leu)) return finish<Codec, NotSwapped<Lt>>(f);
  if (f.has(Mod::gtu)) return finish<Codec, Not<Le>>(f);
  if (f.has(Mod::geu)) return finish<Codec, Not<Lt>>(f);
  if (f.has(Mod::num)) return finish<Codec, As<Num>>(f);
  if (f.has(Mod::nan)) return finish<Codec, Not<Num>>(f);
  return nullptr;
}

// testp: by the bits of exponent and fraction.
template <class U, Mod Which>
Flow testp(Warp& warp, const Instruction& in) {
  const U* a = row<const U>(warp, in.a);
  constexpr U kExponent = sizeof(U) == 4 ? U{0x7f800000} : static_cast<U>(0x7ff0000000000000U);
  constexpr U kMagnitude = static_cast<U>(~U{0}) >> 1;
  set_predicate(warp, in.d, mask_where([&](std::uint32_t i) __attribute__((always_inline)) {
                  const U v = a[i] & kMagnitude;
                  if constexpr (Which == Mod::finite)
                    return v < kExponent;
                  else if constexpr (Which == Mod::infinite)
                    return v == kExponent;
                  else if constexpr (Which == Mod::number)
                    return v <= kExponent;
                  else if constexpr (Which == Mod::notanumber)
                    return v > kExponent;
                  else if constexpr (Which == Mod::normal)
                    return v < kExponent && (v & kExponent) != 0;
                  else
                    return v != 0 && (v & kExponent) == 0;
                }));
  return Flow::next;
}
template <class U>
Handler pick_testp(const Form& f) {
  if (f.has(Mod::finite)) return testp<U, Mod::finite>;
  if (f.has(Mod::infinite)) return testp<U, Mod::infinite>;
  if (f.has(Mod::number)) return testp<U, Mod::number>;
  if (f.has(Mod::notanumber)) return testp<U, Mod::notanumber>;
  if (f.has(Mod::normal)) return testp<U, Mod::normal>;
  return f.has(Mod::subnormal) ? testp<U, Mod::subnormal> : nullptr;
}

}  // namespace

Handler select_compare(const Form& f) {
  if (f.op == Op::testp) return f.type == Type::f64 ? pick_testp<std::uint64_t>(f) : f.type == Type::f32 ? pick_testp<std::uint32_t>(f) : nullptr;
  const bool ftz = f.has(Mod::ftz);
  if (ftz && f.type != Type::f32) return nullptr;
  switch (f.type) {
    case Type::b16: return pick_integer<Plain<std::uint16_t>>(f, false, true);
    case Type::b32: return pick_integer<Plain<std::uint32_t>>(f, false, true);
    case Type::b64: return pick_integer<Plain<std::uint64_t>>(f, false, true);
    case Type::u16: return pick_integer<Plain<std::uint16_t>>(f, false, false);
    case Type::u32: return pick_integer<Plain<std::uint32_t>>(f, false, false);
    case Type::u64: return pick_integer<Plain<std::uint64_t>>(f, false, false);
    case Type::s16: return pick_integer<Plain<std::int16_t>>(f, true, false);
    case Type::s32: return pick_integer<Plain<std::int32_t>>(f, true, false);
    case Type::s64: return pick_integer<Plain<std::int64_t>>(f, true, false);
    case Type::f32: return ftz ? pick_float<FlushingCodec<Plain<float>>>(f) : pick_float<Plain<float>>(f);
    case Type::f64: return pick_float<Plain<double>>(f);
    case Type::f16: return pick_float<HalfCodec>(f);
    case Type::bf16: return pick_float<BfloatCodec>(f);
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
