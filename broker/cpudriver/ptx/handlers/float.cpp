// SPDX-License-Identifier: Apache-2.0
//
// f32 and f64 arithmetic. Exact operations (add to sqrt.rn) match the hardware bit for bit; approximate ones are
// libm's, which are at least as accurate but differ from a GPU in the last bits.
#include "broker/cpudriver/ptx/handlers/rounding.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

// PTX's canonical NaN, which operations that make or pass on a NaN return for f32.
[[gnu::always_inline]] inline float canonical(float v) { return v != v ? __builtin_bit_cast(float, 0x7fffffffU) : v; }
[[gnu::always_inline]] inline double canonical(double v) { return v; }

#if defined(__FMA__)
constexpr bool kFmaIsSlow = false;
#else
constexpr bool kFmaIsSlow = true;
#endif
[[gnu::always_inline]] inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
[[gnu::always_inline]] inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class T>
struct AddOp {
  static constexpr bool kPerLane = false;
  static T f(T a, T b) { return a + b; }
};
template <class T>
struct SubOp {
  static constexpr bool kPerLane = false;
  static T f(T a, T b) { return a - b; }
};
template <class T>
struct MulOp {
  static constexpr bool kPerLane = false;
  static T f(T a, T b) { return a * b; }
};
template <class T>
struct DivOp {
  static constexpr bool kPerLane = false;
  static T f(T a, T b) { return a / b; }
};
template <class T>
struct FmaOp {
  static constexpr bool kPerLane = kFmaIsSlow;
  static T f(T a, T b, T c) { return fused(a, b, c); }
};
template <class T>
struct RcpOp {
  static constexpr bool kPerLane = false;
  static T f(T a) { return T{1} / a; }
};
template <class T>
struct SqrtOp {
  static constexpr bool kPerLane = false;
  static T f(T a) {
    if constexpr (sizeof(T) == 4)
      return __builtin_sqrtf(a);
    else
      return __builtin_sqrt(a);
  }
};
template <class T>
struct RsqrtOp {
  static constexpr bool kPerLane = false;
  static T f(T a) { return T{1} / SqrtOp<T>::f(a); }
};
struct SinOp {
  static constexpr bool kPerLane = true;
  static float f(float a) { return __builtin_sinf(a); }
};
struct CosOp {
  static constexpr bool kPerLane = true;
  static float f(float a) { return __builtin_cosf(a); }
};
struct Lg2Op {
  static constexpr bool kPerLane = true;
  static float f(float a) { return __builtin_log2f(a); }
};
struct Ex2Op {
  static constexpr bool kPerLane = true;
  static float f(float a) { return __builtin_exp2f(a); }
};
struct TanhOp {
  static constexpr bool kPerLane = true;
  static float f(float a) { return __builtin_tanhf(a); }
};

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 look at the high word only and clear the low one.
double high_word(double v) { return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, v) & 0xffffffff00000000U); }
double flush64(double v) {
  const auto bits = __builtin_bit_cast(std::uint64_t, v);
  return (bits & 0x7ff0000000000000U) == 0 ? __builtin_bit_cast(double, bits & 0x8000000000000000U) : v;
}
struct RcpHighOp {
  static constexpr bool kPerLane = false;
  static double f(double a) { return high_word(flush64(1.0 / flush64(high_word(a)))); }
};
struct RsqrtHighOp {
  static constexpr bool kPerLane = false;
  static double f(double a) { return high_word(1.0 / __builtin_sqrt(flush64(high_word(a)))); }
};

template <class T, template <class> class O, bool Ftz, bool Sat>
[[gnu::noinline]] Flow float2(Warp& warp, const Instruction& in) {
  using P = Plain<T>;
  const auto* a = row<const typename P::Cell>(warp, in.a);
  const auto* b = row<const typename P::Cell>(warp, in.b);
  store_lanes<typename P::Cell, O<T>::kPerLane>(
      row<typename P::Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        T r = O<T>::f(flush_if<Ftz>(P::get(a[i])), flush_if<Ftz>(P::get(b[i])));
        r = flush_if<Ftz>(r);
        if constexpr (Sat) r = saturate(r);
        return P::put(canonical(r));
      });
  return Flow::next;
}
template <class T, bool Ftz, bool Sat>
[[gnu::noinline]] Flow float_fma(Warp& warp, const Instruction& in) {
  using P = Plain<T>;
  const auto* a = row<const typename P::Cell>(warp, in.a);
  const auto* b = row<const typename P::Cell>(warp, in.b);
  const auto* c = row<const typename P::Cell>(warp, in.c);
  store_lanes<typename P::Cell, kFmaIsSlow>(
      row<typename P::Cell>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        T r = fused(flush_if<Ftz>(P::get(a[i])), flush_if<Ftz>(P::get(b[i])), flush_if<Ftz>(P::get(c[i])));
        r = flush_if<Ftz>(r);
        if constexpr (Sat) r = saturate(r);
        return P::put(canonical(r));
      });
  return Flow::next;
}
template <class T, class O, bool Ftz>
[[gnu::noinline]] Flow float1(Warp& warp, const Instruction& in) {
  using P = Plain<T>;
  const auto* a = row<const typename P::Cell>(warp, in.a);
  store_lanes<typename P::Cell, O::kPerLane>(
      row<typename P::Cell>(warp, in.d),
      warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) { return P::put(canonical(flush_if<Ftz>(O::f(flush_if<Ftz>(P::get(a[i])))))); });
  return Flow::next;
}

// Sign operations work on bits: they keep NaN payloads.
template <class U>
constexpr U kSign = U{1} << (sizeof(U) * 8 - 1);
template <class U, bool Ftz>
[[gnu::always_inline]] inline U flush_bits(U v) {
  if constexpr (Ftz && sizeof(U) == 4)
    return __builtin_bit_cast(U, flush(__builtin_bit_cast(float, v)));
  else
    return v;
}
template <class U, bool Ftz>
struct AbsBits : Shape<U> {
  static U f(U a) { return flush_bits<U, Ftz>(a) & ~kSign<U>; }
};
template <class U, bool Ftz>
struct NegBits : Shape<U> {
  static U f(U a) { return flush_bits<U, Ftz>(a) ^ kSign<U>; }
};
template <class U>
struct CopySign : Shape<U> {
  static U f(U a, U b) { return (a & kSign<U>) | (b & ~kSign<U>); }
};

// min and max: a NaN loses against a number unless .NaN; -0 is less than +0.
template <class T, bool Max, bool Ftz, bool KeepNan, bool AbsXorSign>
struct MinMax : Shape<T> {
  static T f(T a, T b) {
    using U = typename BitsOf<T>::type;
    a = flush_if<Ftz>(a);
    b = flush_if<Ftz>(b);
    U sign = 0;
    if constexpr (AbsXorSign) {
      sign = (__builtin_bit_cast(U, a) ^ __builtin_bit_cast(U, b)) & kSign<U>;
      a = __builtin_bit_cast(T, static_cast<U>(__builtin_bit_cast(U, a) & ~kSign<U>));
      b = __builtin_bit_cast(T, static_cast<U>(__builtin_bit_cast(U, b) & ~kSign<U>));
    }
    const U ua = __builtin_bit_cast(U, a);
    const U ub = __builtin_bit_cast(U, b);
    const T equal = __builtin_bit_cast(T, static_cast<U>(Max ? (ua & ub) : (ua | ub)));  // Decides -0 and +0.
    T r = a == b ? equal : (Max ? a > b : a < b) ? a : b;
    if (b != b) r = a;
    if (KeepNan && a != a) r = a;
    if (KeepNan && b != b) r = b;
    r = canonical(r);
    if constexpr (AbsXorSign) r = r != r ? r : __builtin_bit_cast(T, static_cast<U>(__builtin_bit_cast(U, r) | sign));
    return r;
  }
};

template <class T, bool Max, bool Ftz>
Handler pick_min_max(const Form& f) {
  const bool nan = f.has(Mod::NaN);
  if (f.has(Mod::xorsign) != f.has(Mod::abs)) return nullptr;
  if (f.has(Mod::xorsign)) return nan ? map2<MinMax<T, Max, Ftz, true, true>> : map2<MinMax<T, Max, Ftz, false, true>>;
  return nan ? map2<MinMax<T, Max, Ftz, true, false>> : map2<MinMax<T, Max, Ftz, false, false>>;
}

template <class T, template <class> class O, bool Ftz, bool Sat>
Handler pick_rounding(const Form& f) {
  if (f.has(Mod::rm)) return rounded<float2<T, O, Ftz, Sat>, Round::down>;
  if (f.has(Mod::rp)) return rounded<float2<T, O, Ftz, Sat>, Round::up>;
  if (f.has(Mod::rz)) return rounded<float2<T, O, Ftz, Sat>, Round::zero>;
  return float2<T, O, Ftz, Sat>;
}
template <template <class> class O>
Handler pick2(const Form& f) {
  const bool ftz = f.has(Mod::ftz);
  const bool sat = f.has(Mod::sat);
  if (f.type == Type::f64) return ftz || sat ? nullptr : pick_rounding<double, O, false, false>(f);
  if (f.type != Type::f32) return nullptr;
  if (ftz) return sat ? pick_rounding<float, O, true, true>(f) : pick_rounding<float, O, true, false>(f);
  return sat ? pick_rounding<float, O, false, true>(f) : pick_rounding<float, O, false, false>(f);
}
template <class T, bool Ftz, bool Sat>
Handler pick_fma_rounding(const Form& f) {
  if (f.has(Mod::rm)) return rounded<float_fma<T, Ftz, Sat>, Round::down>;
  if (f.has(Mod::rp)) return rounded<float_fma<T, Ftz, Sat>, Round::up>;
  if (f.has(Mod::rz)) return rounded<float_fma<T, Ftz, Sat>, Round::zero>;
  return f.has(Mod::rn) ? float_fma<T, Ftz, Sat> : nullptr;
}
Handler pick_fma(const Form& f) {
  const bool ftz = f.has(Mod::ftz);
  const bool sat = f.has(Mod::sat);
  if (f.type == Type::f64) return ftz || sat ? nullptr : pick_fma_rounding<double, false, false>(f);
  if (f.type != Type::f32) return nullptr;
  if (ftz) return sat ? pick_fma_rounding<float, true, true>(f) : pick_fma_rounding<float, true, false>(f);
  return sat ? pick_fma_rounding<float, false, true>(f) : pick_fma_rounding<float, false, false>(f);
}
template <class T, class O, bool Ftz>
Handler pick1_rounding(const Form& f) {
  if (f.has(Mod::rm)) return rounded<float1<T, O, Ftz>, Round::down>;
  if (f.has(Mod::rp)) return rounded<float1<T, O, Ftz>, Round::up>;
  if (f.has(Mod::rz)) return rounded<float1<T, O, Ftz>, Round::zero>;
  return float1<T, O, Ftz>;
}
template <template <class> class O>
Handler pick1(const Form& f) {  // rcp and sqrt: rounded or approximate.
  if (f.type == Type::f64) return f.has(Mod::ftz) ? nullptr : pick1_rounding<double, O<double>, false>(f);
  if (f.type != Type::f32) return nullptr;
  return f.has(Mod::ftz) ? pick1_rounding<float, O<float>, true>(f) : pick1_rounding<float, O<float>, false>(f);
}
template <class O>
Handler approximate(const Form& f) {  // f32 only.
  if (f.type != Type::f32 || !f.has(Mod::approx)) return nullptr;
  return f.has(Mod::ftz) ? float1<float, O, true> : float1<float, O, false>;
}

Handler pick_sign(const Form& f) {
  const bool abs = f.op == Op::abs;
  if (f.type == Type::f64) return f.has(Mod::ftz) ? nullptr : abs ? map1<AbsBits<std::uint64_t, false>> : map1<NegBits<std::uint64_t, false>>;
  if (f.has(Mod::ftz)) return abs ? map1<AbsBits<std::uint32_t, true>> : map1<NegBits<std::uint32_t, true>>;
  return abs ? map1<AbsBits<std::uint32_t, false>> : map1<NegBits<std::uint32_t, false>>;
}

Handler pick_extreme(const Form& f) {
  const bool max = f.op == Op::max;
  if (f.type == Type::f64) {
    if (f.has(Mod::ftz) || f.has(Mod::NaN) || f.has(Mod::xorsign) || f.has(Mod::abs)) return nullptr;
    return max ? map2<MinMax<double, true, false, false, false>> : map2<MinMax<double, false, false, false, false>>;
  }
  if (f.has(Mod::ftz)) return max ? pick_min_max<float, true, true>(f) : pick_min_max<float, false, true>(f);
  return max ? pick_min_max<float, true, false>(f) : pick_min_max<float, false, false>(f);
}

}  // namespace

Handler select_float(const Form& f) {
  if (f.type != Type::f32 && f.type != Type::f64) return nullptr;
  const bool is64 = f.type == Type::f64;
  const bool rounded = f.has(Mod::rn) || f.has(Mod::rz) || f.has(Mod::rm) || f.has(Mod::rp);
  const bool approx = f.has(Mod::approx) || f.has(Mod::full);
  switch (f.op) {
    case Op::add: return pick2<AddOp>(f);
    case Op::sub: return pick2<SubOp>(f);
    case Op::mul: return pick2<MulOp>(f);
    case Op::div: return rounded == approx || (is64 && approx) ? nullptr : pick2<DivOp>(f);
    case Op::fma:
    case Op::mad: return pick_fma(f);
    case Op::rcp:
      if (is64 && approx) return f.has(Mod::ftz) ? float1<double, RcpHighOp, false> : nullptr;
      return rounded == approx ? nullptr : pick1<RcpOp>(f);
    case Op::sqrt: return rounded == approx || (is64 && approx) ? nullptr : pick1<SqrtOp>(f);
    case Op::rsqrt:
      if (!approx || rounded) return nullptr;
      if (is64) return f.has(Mod::ftz) ? float1<double, RsqrtHighOp, false> : float1<double, RsqrtOp<double>, false>;
      return approximate<RsqrtOp<float>>(f);
    case Op::sin: return approximate<SinOp>(f);
    case Op::cos: return approximate<CosOp>(f);
    case Op::lg2: return approximate<Lg2Op>(f);
    case Op::ex2: return approximate<Ex2Op>(f);
    case Op::tanh: return approximate<TanhOp>(f);
    case Op::abs:
    case Op::neg: return pick_sign(f);
    case Op::min:
    case Op::max: return pick_extreme(f);
    case Op::copysign: return is64 ? map2<CopySign<std::uint64_t>> : map2<CopySign<std::uint32_t>>;
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
