// SPDX-License-Identifier: Apache-2.0
// Which worker should have a session. Two threads that hand launches to the driver in turn get less done than one (docs/measurements.md), so
// sessions that wait after every few launches are together with the first worker, which finds work of several at each turn. A session that
// posts long runs costs decoding and filling graphs instead, and goes where there is least of that.
#pragma once

#include <cstdint>

#include "broker/executor/stream_set.hpp"

namespace mpsshim::broker {

enum class Placement : std::uint8_t { stay, first, elsewhere };

// From what a session has done in some milliseconds. Between the two bounds it stays where it is.
[[nodiscard]] constexpr Placement placement(const StreamSet::Pace& done, std::uint64_t milliseconds, bool is_with_first) {
  constexpr std::uint64_t kMany = 200;      // operations a millisecond: worth a worker
  constexpr std::uint64_t kSome = 10;       // enough to judge by
  constexpr std::uint64_t kLongRun = 32;    // operations a fence
  constexpr std::uint64_t kShortRun = 12;
  if (is_with_first) {
    return done.operations >= kMany * milliseconds && done.operations >= kLongRun * done.fences ? Placement::elsewhere : Placement::stay;
  }
  return done.operations >= kSome * milliseconds && done.operations < kShortRun * done.fences ? Placement::first : Placement::stay;
}

}  // namespace mpsshim::broker
