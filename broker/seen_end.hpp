// SPDX-License-Identifier: Apache-2.0
// When a stream's work was last seen to end. After a fault the GPU stands still until the driver tells of it, but words behind the faulted work
// may be written all the same: when it is taken off the GPU, or, after an exception of a multiprocessor beside another client's kernel, at once
// (seen on an H200 with misaligned accesses). So what ended last counts as under way: before the report, and before the standstill if nothing
// that still runs was begun later. Where the kernel log has told of the fault, what ended about then counts instead; after a fault with words
// behind it, whatever ended since the standstill.
// Written by the fault watch, read by the control process after the report.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>

#include "broker/progress_table.hpp"

namespace mpsshim::broker {

// 100 us each, of the machine's monotonic clock; goes round after five days.
using ProgressTick = std::uint32_t;
inline constexpr ProgressTick kLateEnd = 20;               // so long before the report, or before the last end of all
inline constexpr ProgressTick kLongestStandstill = 2'000;  // an H200 reports 4 to 140 ms after a fault
inline constexpr ProgressTick kLogDelay = 100;             // the kernel log tells of an exception 1 to 6 ms after the launch that raises it
inline constexpr ProgressTick kLongestLogDelay = 1'000;    // 17 to 27 ms seen where processes share the GPU
// Where nobody has work any more, whoever ended last has faulted, and a GPU that other processes share may report it late.
inline constexpr ProgressTick kLongestStandstillAtRest = 20'000;

[[nodiscard]] inline ProgressTick progress_tick() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<ProgressTick>(static_cast<std::uint64_t>(now.tv_sec) * 10'000 + static_cast<std::uint64_t>(now.tv_nsec) / 100'000);
}

inline void note_end(StreamProgress& stream, std::uint32_t completed, ProgressTick now) {
  stream.end_seen.store(std::uint64_t{now} << 32 | completed, std::memory_order_release);
}

[[nodiscard]] inline bool has_noted(const StreamProgress& stream, std::uint32_t completed) {
  return static_cast<std::uint32_t>(stream.end_seen.load(std::memory_order_relaxed)) == completed;
}

inline void note_work(StreamProgress& stream, bool is_busy, ProgressTick now) {
  if (is_busy == (stream.busy_seen.load(std::memory_order_relaxed) != 0)) return;
  stream.busy_seen.store(is_busy ? std::max(now, ProgressTick{1}) : 0, std::memory_order_release);
}

// The stream goes back to the pool, its words all written. They may have been behind faulted work, so whose it was stays known.
inline void note_former(StreamProgress& stream, ProgressTick now) {
  const std::uint64_t session = stream.session.load(std::memory_order_relaxed);
  const std::uint32_t kinds = stream.kinds.exchange(0, std::memory_order_relaxed);
  if (session == 0 || kinds == 0) return;
  const bool is_noted = has_noted(stream, stream.completed.load(std::memory_order_acquire));
  stream.former_end.store(is_noted ? static_cast<ProgressTick>(stream.end_seen.load(std::memory_order_relaxed) >> 32) : now,
                          std::memory_order_relaxed);
  stream.former_kinds.store(kinds, std::memory_order_relaxed);
  stream.former_session.store(session, std::memory_order_release);
}

// Ends that are not believed: those at `from` or later, and those around the fault, where it is known when that was.
struct LateEnds {
  struct Span {
    ProgressTick from = 0;
    ProgressTick to = 0;
  };
  ProgressTick from = 0;
  std::optional<Span> at_fault = std::nullopt;
};

[[nodiscard]] inline bool is_not_before(ProgressTick tick, ProgressTick other) { return static_cast<std::int32_t>(tick - other) >= 0; }

// Something of it ended then, or has ended since the watch last looked.
[[nodiscard]] inline bool ended_late(const StreamProgress& stream, const LateEnds& late) {
  const std::uint64_t seen = stream.end_seen.load(std::memory_order_acquire);
  if (static_cast<std::uint32_t>(seen) != stream.completed.load(std::memory_order_acquire)) return true;
  const auto end = static_cast<ProgressTick>(seen >> 32);
  if (end == 0) return false;
  return is_not_before(end, late.from) || (late.at_fault && is_not_before(end, late.at_fault->from) && is_not_before(late.at_fault->to, end));
}

// The same of the session that had the stream last. Its end may be noted later than it was, so no end of `late` makes it believed.
[[nodiscard]] inline bool former_ended_late(const StreamProgress& stream, const LateEnds& late) {
  if (stream.former_session.load(std::memory_order_acquire) == 0) return false;
  const std::uint32_t end = stream.former_end.load(std::memory_order_relaxed);
  return is_not_before(end, late.from) || (late.at_fault && is_not_before(end, late.at_fault->from));
}

}  // namespace mpsshim::broker
