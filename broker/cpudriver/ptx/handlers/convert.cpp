// SPDX-License-Identifier: Apache-2.0
//
// cvt between integers, and between them and f16, bf16, f32 and f64.
#include "broker/cpudriver/ptx/handlers/convert.hpp"

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

}  // namespace

Handler select_convert(const Form& f) {
  if (f.type2 == Type::f16x2 || f.type2 == Type::bf16x2) return select_convert_floats(f);
  const bool to_float = is_float(f.type2);
  const bool from_float = is_float(f.type);
  if (to_float && from_float) return select_convert_floats(f);
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
