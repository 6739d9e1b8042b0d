// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on f16, f16x2, bf16 and bf16x2: in f32 (sums and products of 11-bit significands rounded twice still
// round correctly), fma in f64.
#include "broker/cpudriver/ptx/handlers/half.hpp"

#include "broker/cpudriver/ptx/handlers/rounding.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

// a * b is exact in f64. The sum is made odd where inexact, so that rounding it again to f32 and to half is right.
double fma_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  auto bits = __builtin_bit_cast(std::uint64_t, sum);
  if (error == 0 || error != error || (bits & 1) != 0) return sum;
  bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
  return __builtin_bit_cast(double, bits);
}
float to_odd(double v) {  // To f32, inexact results odd.
  float narrow = static_cast<float>(v);
  auto bits = __builtin_bit_cast(std::uint32_t, narrow);
  if (static_cast<double>(narrow) == v || narrow != narrow || (bits & 1) != 0) return narrow;
  const bool grew = static_cast<double>(narrow < 0 ? -narrow : narrow) > (v < 0 ? -v : v);
  return __builtin_bit_cast(float, grew ? bits - 1 : bits + 1);
}

struct AddF {
  static float f(float a, float b) { return a + b; }
};
struct SubF {
  static float f(float a, float b) { return a - b; }
};
struct MulF {
  static float f(float a, float b) { return a * b; }
};
struct FmaF {
  static float f(float a, float b, float c) { return to_odd(fma_to_odd(a, b, c)); }
};
template <bool Max, bool KeepNan>
struct ExtremeF {
  static float f(float a, float b) {
    const auto ua = __builtin_bit_cast(std::uint32_t, a);
    const auto ub = __builtin_bit_cast(std::uint32_t, b);
    const float equal = __builtin_bit_cast(float, Max ? (ua & ub) : (ua | ub));
    float r = a == b ? equal : (Max ? a > b : a < b) ? a : b;
    if (b != b) r = a;
    if (KeepNan && (a != a || b != b)) r = __builtin_nanf("");
    return r;
  }
};
struct TanhF {
  static float f(float a) { return __builtin_tanhf(a); }
};
struct Ex2F {
  static float f(float a) { return __builtin_exp2f(a); }
};

// One value of a cell, or both halves of a pair.
template <class Codec, bool Pair, bool Sat, bool Relu, class F, class... Cells>
[[gnu::always_inline]] inline std::uint32_t apply(Cells... cells) {
  const auto finish = [](float r) __attribute__((always_inline)) {
    if constexpr (Sat) r = saturate(r);
    if constexpr (Relu) r = r < 0 ? 0.0F : r;
    return Codec::put(r);
  };
  std::uint32_t result = finish(F::f(Codec::get(cells)...));
  if constexpr (Pair) result |= finish(F::f(Codec::get(cells >> 16)...)) << 16;
  return result;
}

template <class Codec, bool Pair, bool Sat, bool Relu, class F, int Sources>
Flow half_op(Warp& warp, const Instruction& in) {
  const auto* a = row<const std::uint32_t>(warp, in.a);
  const auto* b = Sources > 1 ? row<const std::uint32_t>(warp, in.b) : nullptr;
  const auto* c = Sources > 2 ? row<const std::uint32_t>(warp, in.c) : nullptr;
  constexpr bool kPerLane = Sources != 2;
  store_lanes<std::uint32_t, kPerLane>(
      row<std::uint32_t>(warp, in.d), warp.exec, [&](std::uint32_t i) __attribute__((always_inline)) {
        if constexpr (Sources == 1)
          return apply<Codec, Pair, Sat, Relu, F>(a[i]);
        else if constexpr (Sources == 2)
          return apply<Codec, Pair, Sat, Relu, F>(a[i], b[i]);
        else
          return apply<Codec, Pair, Sat, Relu, F>(a[i], b[i], c[i]);
      });
  return Flow::next;
}

template <bool Abs, bool Pair>
struct SignOp : Shape<std::uint32_t> {
  static std::uint32_t f(std::uint32_t a) {
    constexpr std::uint32_t kSigns = Pair ? 0x80008000 : 0x8000;
    return Abs ? (a & ~kSigns) : (a ^ kSigns);
  }
};

template <class Codec, bool Pair>
Handler pick(const Form& f) {
  const bool sat = f.has(Mod::sat);
  const bool relu = f.has(Mod::relu);
  switch (f.op) {
    case Op::add: return sat ? half_op<Codec, Pair, true, false, AddF, 2> : half_op<Codec, Pair, false, false, AddF, 2>;
    case Op::sub: return sat ? half_op<Codec, Pair, true, false, SubF, 2> : half_op<Codec, Pair, false, false, SubF, 2>;
    case Op::mul: return sat ? half_op<Codec, Pair, true, false, MulF, 2> : half_op<Codec, Pair, false, false, MulF, 2>;
    case Op::fma:
      if (sat && relu) return nullptr;
      if (relu) return half_op<Codec, Pair, false, true, FmaF, 3>;
      return sat ? half_op<Codec, Pair, true, false, FmaF, 3> : half_op<Codec, Pair, false, false, FmaF, 3>;
    case Op::min:
      if (f.has(Mod::xorsign)) return nullptr;
      return f.has(Mod::NaN) ? half_op<Codec, Pair, false, false, ExtremeF<false, true>, 2>
                             : half_op<Codec, Pair, false, false, ExtremeF<false, false>, 2>;
    case Op::max:
      if (f.has(Mod::xorsign)) return nullptr;
      return f.has(Mod::NaN) ? half_op<Codec, Pair, false, false, ExtremeF<true, true>, 2>
                             : half_op<Codec, Pair, false, false, ExtremeF<true, false>, 2>;
    case Op::abs: return map1<SignOp<true, Pair>>;
    case Op::neg: return map1<SignOp<false, Pair>>;
    case Op::tanh: return f.has(Mod::approx) ? half_op<Codec, Pair, false, false, TanhF, 1> : nullptr;
    case Op::ex2: return f.has(Mod::approx) ? half_op<Codec, Pair, false, false, Ex2F, 1> : nullptr;
    default: return nullptr;
  }
}

}  // namespace

Handler select_half(const Form& f) {
  if (f.has(Mod::ftz)) return nullptr;  // Not executed exactly yet; refused rather than ignored.
  switch (f.type) {
    case Type::f16: return pick<HalfCodec, false>(f);
    case Type::f16x2: return pick<HalfCodec, true>(f);
    case Type::bf16: return f.has(Mod::sat) ? nullptr : pick<BfloatCodec, false>(f);
    case Type::bf16x2: return f.has(Mod::sat) ? nullptr : pick<BfloatCodec, true>(f);
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
