// SPDX-License-Identifier: Apache-2.0
//
// Names of special registers that are rows. Clocks are not: see decode_special_move.
#pragma once

#include <optional>
#include <string_view>

#include "broker/cpudriver/ptx/program.hpp"

namespace mpsshim::ptx {

struct SpecialRegister {
  Special row = Special::zero;
  bool is_wide = false;
};

[[nodiscard]] std::optional<SpecialRegister> special_register(std::string_view name, std::string_view component);

}  // namespace mpsshim::ptx
