// SPDX-License-Identifier: Apache-2.0
// What a watchful client tells of its rounds, in a file that whoever started it maps as well: a header, then a sample a round. The writer counts a
// sample once it is whole.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mpsshim::test {

struct WatchSample {
  std::uint64_t begin_ns = 0;  // of CLOCK_MONOTONIC
  std::uint64_t end_ns = 0;
};

struct WatchHeader {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> wrong{0};     // rounds whose result was another one
  std::atomic<std::uint64_t> began_ns{0};  // of the round under way; 0: none is
  char error[256] = {};                    // why it has ended early
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(WatchHeader) % alignof(WatchSample) == 0);

inline constexpr std::uint64_t kWatchPauseUs = 1'000;  // between rounds: an idle client that wants something now and then
inline constexpr std::uint64_t kSamplesPerSecond = 1'000'000 / kWatchPauseUs;

[[nodiscard]] constexpr std::size_t watch_bytes(std::uint64_t samples) { return sizeof(WatchHeader) + samples * sizeof(WatchSample); }

}  // namespace mpsshim::test
