// SPDX-License-Identifier: Apache-2.0
//
// Which handler file executes a form.
#include "broker/cpudriver/ptx/barrier.hpp"
#include "broker/cpudriver/ptx/form.hpp"

namespace mpsshim::ptx {
namespace {

enum class Family { integer, bits, bit_fields, real, half, compare, convert, memory, once };

bool is_half(Type t) { return t == Type::f16 || t == Type::f16x2 || t == Type::bf16 || t == Type::bf16x2; }
bool is_real(Type t) { return t == Type::f32 || t == Type::f64; }

// A table, and so longer than other functions.
Family family_of(const Form& f) {
  switch (f.op) {
    case Op::abs:
    case Op::add:
    case Op::addc:
    case Op::div:
    case Op::dp2a:
    case Op::dp4a:
    case Op::fma:
    case Op::mad:
    case Op::mad24:
    case Op::madc:
    case Op::max:
    case Op::min:
    case Op::mul:
    case Op::mul24:
    case Op::neg:
    case Op::rem:
    case Op::sad:
    case Op::sub:
    case Op::subc:
    case Op::copysign:
    case Op::cos:
    case Op::ex2:
    case Op::lg2:
    case Op::rcp:
    case Op::rsqrt:
    case Op::sin:
    case Op::sqrt:
    case Op::tanh: return is_half(f.type) ? Family::half : is_real(f.type) ? Family::real : Family::integer;
    case Op::and_:
    case Op::cnot:
    case Op::lop3:
    case Op::mov:
    case Op::not_:
    case Op::or_:
    case Op::prmt:
    case Op::selp:
    case Op::shf:
    case Op::shl:
    case Op::shr:
    case Op::slct:
    case Op::xor_: return Family::bits;
    case Op::bfe:
    case Op::bfi:
    case Op::bfind:
    case Op::bmsk:
    case Op::brev:
    case Op::clz:
    case Op::fns:
    case Op::popc: return Family::bit_fields;
    case Op::set:
    case Op::setp:
    case Op::testp: return Family::compare;
    case Op::cvt: return Family::convert;
    case Op::ld:
    case Op::st: return Family::memory;
    case Op::activemask:
    case Op::atom:
    case Op::bar:
    case Op::bra:
    case Op::call:
    case Op::cvta:
    case Op::exit:
    case Op::fence:
    case Op::griddepcontrol:
    case Op::isspacep:
    case Op::match:
    case Op::nanosleep:
    case Op::prefetch:
    case Op::red:
    case Op::redux:
    case Op::ret:
    case Op::shfl:
    case Op::trap:
    case Op::vote: return Family::once;
  }
  return Family::once;
}

Handler select_once(const Form& f) {
  switch (f.op) {
    case Op::atom:
    case Op::red: return select_atomic(f);
    case Op::bar: return f.has(Mod::warp) ? select_warp(f) : barrier;
    case Op::activemask:
    case Op::match:
    case Op::redux:
    case Op::shfl:
    case Op::vote: return select_warp(f);
    default: return select_control(f);
  }
}

#define MPSSHIM_PTX_SELECT(isa)                                \
  switch (family) {                                            \
    case Family::integer: return isa::select_integer(f);       \
    case Family::bits: return isa::select_bits(f);             \
    case Family::bit_fields: return isa::select_bit_fields(f); \
    case Family::real: return isa::select_float(f);            \
    case Family::half: return isa::select_half(f);             \
    case Family::compare: return isa::select_compare(f);       \
    case Family::convert: return isa::select_convert(f);       \
    case Family::memory: return isa::select_memory(f);         \
    case Family::once: return select_once(f);                  \
  }                                                            \
  return nullptr;

Handler select_baseline(const Form& f, Family family){MPSSHIM_PTX_SELECT(isa_baseline)} Handler select_v3(const Form& f, Family family) {
  MPSSHIM_PTX_SELECT(isa_v3)
}
#undef MPSSHIM_PTX_SELECT

}  // namespace

bool processor_has_v3() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi") != 0 &&
         __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
}

// The v3 files are compiled for AVX2 throughout, their select functions too: not called on a lesser processor.
HandlerPair select_handlers(const Form& form) {
  static const bool kHasV3 = processor_has_v3();
  const Family family = family_of(form);
  const Handler baseline = select_baseline(form, family);
  return HandlerPair{{baseline, kHasV3 ? select_v3(form, family) : baseline}};
}

}  // namespace mpsshim::ptx
