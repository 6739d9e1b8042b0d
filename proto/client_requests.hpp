// SPDX-License-Identifier: Apache-2.0
// What goes with the messages of a client that has a session (proto/spec/messages.toml).
#pragma once

#include <cstdint>

#include "proto/handshake.hpp"

namespace mpsshim::proto {

[[nodiscard]] constexpr bool has_own_address(SegmentPurpose purpose) { return purpose != SegmentPurpose::staging; }

inline constexpr std::uint32_t kOutputSinceMinor = 3;  // clients that speak less have their text in the broker's log

inline constexpr std::uint32_t kTrialsSinceMinor = 3;

static_assert(sizeof(OutputTaken) == 4000);

}  // namespace mpsshim::proto
