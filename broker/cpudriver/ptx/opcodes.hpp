// SPDX-License-Identifier: Apache-2.0
//
// The opcodes that are executed: for each its operands, how many types it names, and every modifier it may carry. What
// is not here fails the load. Read by the decoder.
#pragma once

#include <string_view>

#include "broker/cpudriver/ptx/form.hpp"

namespace mpsshim::ptx {

struct OpcodeRow {
  std::string_view name;
  Op op;
  std::uint8_t types;  // Named types, e.g. 2 for cvt.
  // Destination, then sources. t: the type, 2: the one named before it, w: twice as wide, u: u32, p: predicate
  // destination, P: predicate source (may be negated), i: immediate. Empty: decoded by hand.
  std::string_view operands;
  ModSet allowed;
};

[[nodiscard]] const OpcodeRow* find_opcode(std::string_view name);

}  // namespace mpsshim::ptx
