// SPDX-License-Identifier: Apache-2.0
//
// cvt between integers, f16, bf16, f32 and f64.
#include "broker/cpudriver/ptx/handlers/half.hpp"
#include "broker/cpudriver/ptx/handlers/rounding.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

template <class T>
constexpr bool kSigned = static_cast<T>(-1) < T{0};
template <class T>
constexpr T kMax = kSigned<T> ? static_cast<T>((std::uint64_t{1} << (sizeof(T) * 8 - 1)) - 1) : static_cast<T>(-1);
template <class T>
constexpr T kMin = kSigned<T> ? static_cast<T>(-kMax<T> - 1) : T{0};

// Signed results are sign-extended over the cell: the destination register may be wider than the type.
template <class T>
[[gnu::always_inline]] inline typename CellOf<sizeof(T)>::type extended(T v) {
  using Cell = typename CellOf<sizeof(T)>::type;
  if constexpr (kSigned<T>)
    return static_cast<Cell>(static_cast<std::int64_t>(v));
  else
    return static_cast<Cell>(v);
}

// A conversion of a warp is at most three loops, each compiled once: the source's lanes are brought to a common form in a row of their own, and
// from there into the destination. Only the commonest go in one step.

// What one integer type is to another that is not larger: its low bits.
template <class D, class S>
using LowBits = std::conditional_t<(sizeof(D) > sizeof(S)), S, std::conditional_t<sizeof(S) == 8, std::uint64_t, std::uint32_t>>;

template <class D, class S>
Flow int_to_int(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Plain<S>::Cell>(warp, in.a);
  using Cell = typename CellOf<sizeof(D)>::type;
  store_lanes<Cell, false>(
      row<Cell>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return extended(static_cast<D>(Plain<S>::get(a[i]))); });
  return Flow::next;
}

template <class S>
using Widest = std::conditional_t<kSigned<S>, std::int64_t, std::uint64_t>;
template <class S>
[[gnu::noinline]] void widen(const typename Plain<S>::Cell* from, Widest<S>* to) {
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) to[i] = Plain<S>::get(from[i]);
}
template <class D, class W>
[[gnu::noinline]] void store_saturated(Warp& warp, const Instruction& in, const W* wide) {
  using Cell = typename CellOf<sizeof(D)>::type;
  store_lanes<Cell, false>(
      row<Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        const W v = wide[i];
        const bool below = kSigned<W> && (kSigned<D> ? static_cast<std::int64_t>(v) < static_cast<std::int64_t>(kMin<D>) : v < W{0});
        const bool above = !(kSigned<W> && v < W{0}) && static_cast<std::uint64_t>(v) > static_cast<std::uint64_t>(kMax<D>);
        return extended(below ? kMin<D> : above ? kMax<D> : static_cast<D>(v));
      });
}
template <class D, class S>
Flow int_to_int_saturated(Warp& warp, const Instruction& in) {
  alignas(64) Widest<S> wide[kLanes];
  widen<S>(row<const typename Plain<S>::Cell>(warp, in.a), wide);
  store_saturated<D>(warp, in, wide);
  return Flow::next;
}

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

template <class V, class S>
[[gnu::noinline]] Flow int_to_float(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename Plain<S>::Cell>(warp, in.a);
  store_lanes<typename Plain<V>::Cell, false>(
      row<typename Plain<V>::Cell>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return Plain<V>::put(static_cast<V>(Plain<S>::get(a[i]))); });
  return Flow::next;
}
template <class V, class S>
[[gnu::noinline]] void int_to_float_row(const typename Plain<S>::Cell* from, V* to) {
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) to[i] = static_cast<V>(Plain<S>::get(from[i]));
}
template <class Codec, class S, bool Sat>
Flow int_to_narrow_float(Warp& warp, const Instruction& in) {
  alignas(64) typename Codec::Value value[kLanes];
  int_to_float_row<typename Codec::Value, S>(row<const typename Plain<S>::Cell>(warp, in.a), value);
  store_float<Codec, Sat>(warp, in, value);
  return Flow::next;
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

// Clamps; NaN gives 0, or the sign bit alone where source or destination has 64 bits (PTX ISA, cvt).
template <class D, class V>
[[gnu::noinline]] void store_clamped(Warp& warp, const Instruction& in, const V* value) {
  using Cell = typename CellOf<sizeof(D)>::type;
  constexpr V kUpper = static_cast<V>(std::uint64_t{1} << (sizeof(D) * 8 - (kSigned<D> ? 1 : 0) - 1)) * V{2};
  constexpr V kLower = kSigned<D> ? -kUpper : V{0};
  constexpr bool kWide = sizeof(D) == 8 || sizeof(V) == 8;
  constexpr D kNan = kWide ? static_cast<D>(std::uint64_t{1} << (sizeof(D) * 8 - 1)) : D{0};
  store_lanes<Cell, false>(
      row<Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        const V v = value[i];
        const bool fits = v < kUpper && v >= kLower;
        D result = static_cast<D>(fits ? v : V{0});
        result = v >= kUpper ? kMax<D> : result;
        result = v < kLower ? kMin<D> : result;
        result = v != v ? kNan : result;
        return extended(result);
      });
}
template <class Codec, class D, bool Ftz, Round R>
Flow float_to_int(Warp& warp, const Instruction& in) {
  alignas(64) typename Codec::Value value[kLanes];
  load_integral<Codec, Ftz && kFlushes<Codec>, R>(row<const typename Codec::Cell>(warp, in.a), value);
  store_clamped<D>(warp, in, value);
  return Flow::next;
}

template <class DCodec, class SCodec, bool Ftz, bool Sat>
[[gnu::noinline]] Flow float_to_float(Warp& warp, const Instruction& in) {
  const auto* a = row<const typename SCodec::Cell>(warp, in.a);
  store_lanes<typename DCodec::Cell, false>(
      row<typename DCodec::Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        auto v = static_cast<typename DCodec::Value>(flush_if<Ftz>(SCodec::get(a[i])));
        v = flush_if<Ftz>(v);
        if constexpr (Sat) v = saturate(v);
        return DCodec::put(v);
      });
  return Flow::next;
}

// Same type: rounds to an integral value, or only saturates or flushes.
template <class Codec, bool Ftz, bool Sat, bool ToIntegral, Round R>
Flow float_round(Warp& warp, const Instruction& in) {
  alignas(64) typename Codec::Value value[kLanes];
  const auto* a = row<const typename Codec::Cell>(warp, in.a);
  if constexpr (ToIntegral)
    load_integral<Codec, Ftz && kFlushes<Codec>, R>(a, value);
  else
    load_float<Codec, Ftz && kFlushes<Codec>>(a, value);
  store_float<Codec, Sat>(warp, in, value);
  return Flow::next;
}

// f64 to f16: a direct rounding by way of f32 made odd.
struct DoubleToHalf : Shape<std::uint32_t, double> {
  static std::uint32_t f(double v) {
    const float narrow = static_cast<float>(v);
    auto bits = __builtin_bit_cast(std::uint32_t, narrow);
    if (static_cast<double>(narrow) != v && narrow == narrow && (bits & 1) == 0) {
      const double grown = narrow < 0 ? -static_cast<double>(narrow) : static_cast<double>(narrow);
      bits = grown > (v < 0 ? -v : v) ? bits - 1 : bits + 1;
    }
    return float_to_half(__builtin_bit_cast(float, bits));
  }
};

template <bool Bfloat, bool Zero, bool Relu>
[[gnu::always_inline]] inline std::uint32_t narrow(float v) {
  if constexpr (Relu) v = v < 0 ? 0.0F : v;
  if constexpr (Bfloat)
    return Zero ? float_to_bfloat_rz(v) : float_to_bfloat(v);
  else
    return Zero ? float_to_half_rz(v) : float_to_half(v);
}
template <bool Bfloat, bool Zero, bool Relu>
struct ToNarrow : Shape<std::uint32_t, float> {
  static std::uint32_t f(float v) { return narrow<Bfloat, Zero, Relu>(v); }
};
template <bool Bfloat, bool Zero, bool Relu>
struct ToPair : Shape<std::uint32_t, float> {  // a is the upper half.
  static std::uint32_t f(float a, float b) { return narrow<Bfloat, Zero, Relu>(a) << 16 | narrow<Bfloat, Zero, Relu>(b); }
};
template <template <bool, bool, bool> class O, bool Bfloat, bool Pair>
Handler pick_narrow(const Form& f) {
  if (f.has(Mod::rn) == f.has(Mod::rz) || f.has(Mod::sat) || f.has(Mod::ftz)) return nullptr;
  const auto as = [](auto op) -> Handler {
    if constexpr (Pair)
      return map2<decltype(op)>;
    else
      return map1<decltype(op)>;
  };
  if (f.has(Mod::relu)) return f.has(Mod::rz) ? as(O<Bfloat, true, true>{}) : as(O<Bfloat, false, true>{});
  return f.has(Mod::rz) ? as(O<Bfloat, true, false>{}) : as(O<Bfloat, false, false>{});
}

template <class Visitor>
Handler with_integer(Type type, Visitor visit) {
  switch (type) {
    case Type::u8: return visit(std::uint8_t{});
    case Type::u16: return visit(std::uint16_t{});
    case Type::u32: return visit(std::uint32_t{});
    case Type::u64: return visit(std::uint64_t{});
    case Type::s8: return visit(std::int8_t{});
    case Type::s16: return visit(std::int16_t{});
    case Type::s32: return visit(std::int32_t{});
    case Type::s64: return visit(std::int64_t{});
    default: return nullptr;
  }
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

bool is_float(Type t) { return t == Type::f16 || t == Type::bf16 || t == Type::f32 || t == Type::f64; }

// Into f32 and f64 in one step; the narrow types round to nearest alone.
template <class V, class S>
Handler pick_int_rounding(const Form& f) {
  if (f.has(Mod::rn)) return int_to_float<V, S>;
  if (f.has(Mod::rz)) return rounded<int_to_float<V, S>, Round::zero>;
  if (f.has(Mod::rm)) return rounded<int_to_float<V, S>, Round::down>;
  return f.has(Mod::rp) ? rounded<int_to_float<V, S>, Round::up> : nullptr;
}
Handler pick_int_to_float(const Form& f) {
  const bool wide = f.type2 == Type::f32 || f.type2 == Type::f64;
  if (!wide && !f.has(Mod::rn)) return nullptr;
  return with_integer(f.type, [&](auto source) -> Handler {
    using S = decltype(source);
    return with_float(f.type2, [&](auto codec) -> Handler {
      using C = decltype(codec);
      if (f.has(Mod::sat)) return f.has(Mod::rn) ? int_to_narrow_float<C, S, true> : nullptr;
      if constexpr (std::is_same_v<C, Plain<typename C::Value>>)
        return pick_int_rounding<typename C::Value, S>(f);
      else
        return int_to_narrow_float<C, S, false>;
    });
  });
}

template <class C, class D, bool Ftz>
Handler pick_integral_rounding(const Form& f) {
  if (f.has(Mod::rni)) return float_to_int<C, D, Ftz, Round::nearest>;
  if (f.has(Mod::rzi)) return float_to_int<C, D, Ftz, Round::zero>;
  if (f.has(Mod::rmi)) return float_to_int<C, D, Ftz, Round::down>;
  return f.has(Mod::rpi) ? float_to_int<C, D, Ftz, Round::up> : nullptr;
}

Handler pick_float_to_int(const Form& f) {
  return with_integer(f.type2, [&](auto target) -> Handler {
    using D = decltype(target);
    return with_float(f.type, [&](auto codec) -> Handler {
      using C = decltype(codec);
      return f.has(Mod::ftz) ? pick_integral_rounding<C, D, true>(f) : pick_integral_rounding<C, D, false>(f);
    });
  });
}

template <class C, bool Ftz, bool Sat>
Handler pick_same(const Form& f) {
  if (f.has(Mod::rni)) return float_round<C, Ftz, Sat, true, Round::nearest>;
  if (f.has(Mod::rzi)) return float_round<C, Ftz, Sat, true, Round::zero>;
  if (f.has(Mod::rmi)) return float_round<C, Ftz, Sat, true, Round::down>;
  if (f.has(Mod::rpi)) return float_round<C, Ftz, Sat, true, Round::up>;
  return float_round<C, Ftz, Sat, false, Round::nearest>;
}

template <class D, class S, bool Ftz, bool Sat>
Handler pick_float_rounding(const Form& f) {
  if (f.has(Mod::rz)) return rounded<float_to_float<D, S, Ftz, Sat>, Round::zero>;
  if (f.has(Mod::rm)) return rounded<float_to_float<D, S, Ftz, Sat>, Round::down>;
  if (f.has(Mod::rp)) return rounded<float_to_float<D, S, Ftz, Sat>, Round::up>;
  return float_to_float<D, S, Ftz, Sat>;
}

Handler pick_float_to_float(const Form& f) {
  const bool ftz = f.has(Mod::ftz);
  const bool sat = f.has(Mod::sat);
  if (f.type2 == f.type) {
    if (f.has(Mod::relu)) return nullptr;
    return with_float(f.type, [&](auto codec) -> Handler {
      using C = decltype(codec);
      if (ftz) return sat ? pick_same<C, true, true>(f) : pick_same<C, true, false>(f);
      return sat ? pick_same<C, false, true>(f) : pick_same<C, false, false>(f);
    });
  }
  if (f.type2 == Type::f16) {
    if (f.type == Type::f32) return pick_narrow<ToNarrow, false, false>(f);
    return f.type == Type::f64 && f.has(Mod::rn) && !ftz && !sat && !f.has(Mod::relu) ? map1<DoubleToHalf> : nullptr;
  }
  if (f.type2 == Type::bf16) return f.type == Type::f32 ? pick_narrow<ToNarrow, true, false>(f) : nullptr;
  if (f.has(Mod::relu)) return nullptr;
  using F = Plain<float>;
  using G = Plain<double>;
  if (f.type2 == Type::f32 && f.type == Type::f64) {
    if (ftz) return sat ? pick_float_rounding<F, G, true, true>(f) : pick_float_rounding<F, G, true, false>(f);
    return sat ? pick_float_rounding<F, G, false, true>(f) : pick_float_rounding<F, G, false, false>(f);
  }
  if (f.type2 == Type::f64 && f.type == Type::f32) {
    if (sat) return nullptr;
    return ftz ? float_to_float<G, F, true, false> : float_to_float<G, F, false, false>;
  }
  if (ftz || sat) return nullptr;
  if (f.type2 == Type::f32) return f.type == Type::f16 ? float_to_float<F, HalfCodec, false, false> : float_to_float<F, BfloatCodec, false, false>;
  if (f.type2 == Type::f64) return f.type == Type::f16 ? float_to_float<G, HalfCodec, false, false> : float_to_float<G, BfloatCodec, false, false>;
  return nullptr;
}

}  // namespace

Handler select_convert(const Form& f) {
  if (f.type2 == Type::f16x2) return f.type == Type::f32 ? pick_narrow<ToPair, false, true>(f) : nullptr;
  if (f.type2 == Type::bf16x2) return f.type == Type::f32 ? pick_narrow<ToPair, true, true>(f) : nullptr;
  const bool to_float = is_float(f.type2);
  const bool from_float = is_float(f.type);
  if (to_float && from_float) return pick_float_to_float(f);
  if (f.has(Mod::relu)) return nullptr;
  if (to_float) return f.has(Mod::ftz) && f.type2 != Type::f32 ? nullptr : pick_int_to_float(f);
  if (from_float) return pick_float_to_int(f);
  return with_integer(f.type, [&](auto source) -> Handler {
    using S = decltype(source);
    return with_integer(f.type2, [&](auto target) -> Handler {
      using D = decltype(target);
      return f.has(Mod::sat) ? int_to_int_saturated<D, S> : int_to_int<D, LowBits<D, S>>;
    });
  });
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
