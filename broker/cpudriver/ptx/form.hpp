// SPDX-License-Identifier: Apache-2.0
//
// The form of an instruction: opcode, types and modifiers, before operands. The decoder fills it; the files in
// handlers/ answer with the code that executes it, or with nothing, which makes the load fail with the line.
#pragma once

#include <array>

#include "broker/cpudriver/ptx/program.hpp"
#include "broker/cpudriver/ptx/types.hpp"

namespace mpsshim::ptx {

enum class Op : std::uint8_t {
  abs,
  activemask,
  add,
  addc,
  and_,
  atom,
  bar,
  bfe,
  bfi,
  bfind,
  bmsk,
  bra,
  brev,
  call,
  clz,
  cnot,
  copysign,
  cos,
  cvt,
  cvta,
  div,
  dp2a,
  dp4a,
  ex2,
  exit,
  fence,
  fma,
  fns,
  griddepcontrol,
  isspacep,
  ld,
  lg2,
  lop3,
  mad,
  mad24,
  madc,
  match,
  max,
  min,
  mov,
  mul,
  mul24,
  nanosleep,
  neg,
  not_,
  or_,
  popc,
  prefetch,
  prmt,
  rcp,
  red,
  redux,
  rem,
  ret,
  rsqrt,
  sad,
  selp,
  set,
  setp,
  shf,
  shfl,
  shl,
  shr,
  sin,
  slct,
  sqrt,
  st,
  sub,
  subc,
  tanh,
  testp,
  trap,
  vote,
  xor_
};

enum class ParameterKind : std::uint8_t { none, entry, slot };

struct Form {
  Op op = Op::add;
  Type type = Type::none;   // The last type written: of the operation, or cvt's source.
  Type type2 = Type::none;  // The one before: cvt's destination, set's destination.
  ModSet mods;
  std::uint32_t register_bytes = 4;                    // ld, st: lane bytes of the register operand.
  ParameterKind parameter_kind = ParameterKind::none;  // ld.param, st.param of a named variable.
  [[nodiscard]] bool has(Mod m) const { return mods.has(m); }
};

// One column per instruction set; the files in handlers/ are compiled once for each.
#define MPSSHIM_PTX_SELECTORS                      \
  Handler select_integer(const Form& form);        \
  Handler select_carry(const Form& form);          \
  Handler select_dot(const Form& form);            \
  Handler select_bits(const Form& form);           \
  Handler select_bit_fields(const Form& form);     \
  Handler select_float(const Form& form);          \
  Handler select_half(const Form& form);           \
  Handler select_compare(const Form& form);        \
  Handler select_convert(const Form& form);        \
  Handler select_convert_floats(const Form& form); \
  Handler select_memory(const Form& form);         \
  Handler select_pack(std::uint32_t bytes, std::uint32_t elements, bool is_pack);
namespace isa_baseline {
MPSSHIM_PTX_SELECTORS
}
namespace isa_v3 {
MPSSHIM_PTX_SELECTORS
}
#undef MPSSHIM_PTX_SELECTORS

// Compiled once.
Handler select_atomic(const Form& form);
Handler select_warp(const Form& form);
Handler select_control(const Form& form);

// Both columns for a form, or an empty pair.
[[nodiscard]] HandlerPair select_handlers(const Form& form);
[[nodiscard]] bool processor_has_v3();

}  // namespace mpsshim::ptx
