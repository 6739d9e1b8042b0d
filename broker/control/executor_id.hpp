// SPDX-License-Identifier: Apache-2.0
// Names an executor among all: its device, and its number there. 0 is the one that is always there.
#pragma once

#include <compare>

namespace mpsshim::broker::control {

struct ExecutorId {
  unsigned device = 0;
  unsigned ordinal = 0;
  auto operator<=>(const ExecutorId&) const = default;
};

}  // namespace mpsshim::broker::control
