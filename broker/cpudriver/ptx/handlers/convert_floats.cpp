// SPDX-License-Identifier: Apache-2.0
//
// cvt between f16, bf16, f32 and f64, and into pairs of halves.
#include "broker/cpudriver/ptx/handlers/convert.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

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

}  // namespace

Handler select_convert_floats(const Form& f) {
  if (f.type2 == Type::f16x2) return f.type == Type::f32 ? pick_narrow<ToPair, false, true>(f) : nullptr;
  if (f.type2 == Type::bf16x2) return f.type == Type::f32 ? pick_narrow<ToPair, true, true>(f) : nullptr;
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

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
