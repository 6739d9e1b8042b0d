// SPDX-License-Identifier: Apache-2.0
// The file in which one executor of a session leaves the times of its events for the next one (executor/session_times.hpp): a number of entries,
// then the entries. The control process keeps it and does not look into it.
#pragma once

#include <cstdint>

namespace mpsshim::broker {

struct EventTimesHeader {
  std::uint64_t count = 0;
};

struct EventTime {
  std::uint64_t event = 0;   // proto::EventId
  std::int64_t host_ns = 0;  // when it was recorded, by the host's steady clock
};

static_assert(sizeof(EventTimesHeader) == 8 && sizeof(EventTime) == 16);

}  // namespace mpsshim::broker
