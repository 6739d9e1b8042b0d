// SPDX-License-Identifier: Apache-2.0
//
// atom and red. In global memory they are real atomics, for other blocks, other launches and the host see the words;
// all are sequentially consistent, which is stronger than any order PTX asks for. A block's shared memory is touched
// by one thread at a time, so there plain reads and writes do. Compiled once.
#include "broker/cpudriver/ptx/handlers/addresses.hpp"
#include "broker/cpudriver/ptx/handlers/half.hpp"

namespace mpsshim::ptx {
namespace {

namespace isa = MPSSHIM_PTX_ISA;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class T>
using Bits = typename isa::BitsOf<T>::type;

struct HalfPair {
  u32 bits;
};
struct BfloatPair {
  u32 bits;
};
struct Half {
  u16 bits;
};
struct Bfloat {
  u16 bits;
};
template <class T>
struct Storage {
  using type = Bits<T>;
};
template <>
struct Storage<HalfPair> {
  using type = u32;
};
template <>
struct Storage<BfloatPair> {
  using type = u32;
};
template <>
struct Storage<Half> {
  using type = u16;
};
template <>
struct Storage<Bfloat> {
  using type = u16;
};
template <>
struct Storage<std::int32_t> {
  using type = u32;
};
template <>
struct Storage<std::int64_t> {
  using type = u64;
};

float sum(float a, float b) { return a + b; }
template <class Codec>
u32 add_pair(u32 a, u32 b) {
  return Codec::put(sum(Codec::get(a), Codec::get(b))) | Codec::put(sum(Codec::get(a >> 16), Codec::get(b >> 16))) << 16;
}

template <class T, Mod Which>
auto combine(typename Storage<T>::type old_bits, typename Storage<T>::type operand) -> typename Storage<T>::type {
  using S = typename Storage<T>::type;
  if constexpr (std::is_same_v<T, HalfPair>)
    return add_pair<isa::HalfCodec>(old_bits, operand);
  else if constexpr (std::is_same_v<T, BfloatPair>)
    return add_pair<isa::BfloatCodec>(old_bits, operand);
  else if constexpr (std::is_same_v<T, Half>)
    return static_cast<u16>(isa::HalfCodec::put(isa::HalfCodec::get(old_bits) + isa::HalfCodec::get(operand)));
  else if constexpr (std::is_same_v<T, Bfloat>)
    return static_cast<u16>(isa::BfloatCodec::put(isa::BfloatCodec::get(old_bits) + isa::BfloatCodec::get(operand)));
  else {
    const T a = __builtin_bit_cast(T, old_bits);
    const T b = __builtin_bit_cast(T, operand);
    if constexpr (Which == Mod::add && std::is_floating_point_v<T>)
      return __builtin_bit_cast(S, a + b);
    else if constexpr (Which == Mod::add)
      return static_cast<S>(old_bits + operand);
    else if constexpr (Which == Mod::min)
      return __builtin_bit_cast(S, b < a ? b : a);
    else if constexpr (Which == Mod::max)
      return __builtin_bit_cast(S, a < b ? b : a);
    else if constexpr (Which == Mod::inc)
      return a >= b ? S{0} : static_cast<S>(a + 1);
    else if constexpr (Which == Mod::dec)
      return a == 0 || a > b ? b : static_cast<S>(a - 1);
    else if constexpr (Which == Mod::and_)
      return old_bits & operand;
    else if constexpr (Which == Mod::or_)
      return old_bits | operand;
    else if constexpr (Which == Mod::xor_)
      return old_bits ^ operand;
    else
      return operand;  // exch
  }
}

template <class T, Mod Which>
auto atomically(typename Storage<T>::type* p, typename Storage<T>::type operand) -> typename Storage<T>::type {
  if constexpr (Which == Mod::exch)
    return __atomic_exchange_n(p, operand, __ATOMIC_SEQ_CST);
  else if constexpr (Which == Mod::add && std::is_integral_v<T>)
    return __atomic_fetch_add(p, operand, __ATOMIC_SEQ_CST);
  else {
    auto old_bits = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old_bits, combine<T, Which>(old_bits, operand), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return old_bits;
  }
}

// in: d or none, a = address, b = operand, c = cas's new value.
template <class T, Mod Which>
Flow atomic(Warp& warp, const Instruction& in) {
  using S = typename Storage<T>::type;
  using Cell = typename isa::CellOf<sizeof(S)>::type;
  alignas(64) u64 address[kLanes];
  isa::Access access{sizeof(S), sizeof(S)};
  access.is_write = true;
  if (!isa::resolve(warp, in, access, address)) return Flow::stop;
  ++warp.strong_accesses;
  const Cell* b = isa::row<const Cell>(warp, in.b);
  const Cell* c = Which == Mod::cas ? isa::row<const Cell>(warp, in.c) : nullptr;
  Cell* d = in.d == kNoOperand ? nullptr : isa::row<Cell>(warp, in.d);
  const bool is_private = in.space == Space::shared;
  for (u32 rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<u32>(__builtin_ctz(rest));
    auto* p = reinterpret_cast<S*>(address[i]);
    const auto operand = static_cast<S>(b[i]);
    S old_bits{};
    if constexpr (Which == Mod::cas) {
      old_bits = operand;
      __atomic_compare_exchange_n(p, &old_bits, static_cast<S>(c[i]), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    } else if (is_private) {
      old_bits = *p;
      *p = combine<T, Which>(old_bits, operand);
    } else {
      old_bits = atomically<T, Which>(p, operand);
    }
    if (d != nullptr) d[i] = old_bits;
  }
  return Flow::next;
}

template <class T>
Handler integer_atomic(const Form& f) {
  if (f.has(Mod::add)) return atomic<T, Mod::add>;
  if (f.has(Mod::min)) return atomic<T, Mod::min>;
  if (f.has(Mod::max)) return atomic<T, Mod::max>;
  if constexpr (std::is_same_v<T, u32>) {
    if (f.has(Mod::inc)) return atomic<T, Mod::inc>;
    if (f.has(Mod::dec)) return atomic<T, Mod::dec>;
  }
  return nullptr;
}
template <class T>
Handler bits_atomic(const Form& f) {
  if (f.has(Mod::and_)) return atomic<T, Mod::and_>;
  if (f.has(Mod::or_)) return atomic<T, Mod::or_>;
  if (f.has(Mod::xor_)) return atomic<T, Mod::xor_>;
  if (f.has(Mod::exch)) return atomic<T, Mod::exch>;
  return f.has(Mod::cas) && f.op == Op::atom ? atomic<T, Mod::cas> : nullptr;
}

}  // namespace

Handler select_atomic(const Form& f) {
  switch (f.type) {
    case Type::b16: return f.has(Mod::cas) && f.op == Op::atom ? atomic<u16, Mod::cas> : nullptr;
    case Type::b32: return bits_atomic<u32>(f);
    case Type::b64: return bits_atomic<u64>(f);
    case Type::u32: return integer_atomic<u32>(f);
    case Type::s32: return integer_atomic<std::int32_t>(f);
    case Type::u64: return integer_atomic<u64>(f);
    case Type::s64: return integer_atomic<std::int64_t>(f);
    case Type::f32: return f.has(Mod::add) ? atomic<float, Mod::add> : nullptr;
    case Type::f64: return f.has(Mod::add) ? atomic<double, Mod::add> : nullptr;
    case Type::f16x2: return f.has(Mod::add) && f.has(Mod::noftz) ? atomic<HalfPair, Mod::add> : nullptr;
    case Type::bf16x2: return f.has(Mod::add) && f.has(Mod::noftz) ? atomic<BfloatPair, Mod::add> : nullptr;
    case Type::f16: return f.has(Mod::add) && f.has(Mod::noftz) ? atomic<Half, Mod::add> : nullptr;
    case Type::bf16: return f.has(Mod::add) && f.has(Mod::noftz) ? atomic<Bfloat, Mod::add> : nullptr;
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx
