// SPDX-License-Identifier: Apache-2.0
// Names an executor among all: its device, whose clients it serves, and its number among those. {device, 0} of kHome is always there.
#pragma once

#include <compare>
#include <tuple>

#include <sys/types.h>

namespace mpsshim::broker::control {

// The broker's own user, and everybody where users share executors.
inline constexpr uid_t kHome = static_cast<uid_t>(-1);

struct ExecutorId {
  unsigned device = 0;
  unsigned ordinal = 0;
  uid_t user = kHome;
  // Those of one device and user stand together, kHome's in front.
  friend auto operator<=>(const ExecutorId& a, const ExecutorId& b) {
    return std::tuple(a.device, a.user + 1, a.ordinal) <=> std::tuple(b.device, b.user + 1, b.ordinal);
  }
  friend bool operator==(const ExecutorId&, const ExecutorId&) = default;
};

}  // namespace mpsshim::broker::control
