// SPDX-License-Identifier: Apache-2.0
// Which worker should have a session. Two threads that hand launches to the driver in one context in turn get less done than one
// (docs/experiments/2026-11-21-words-by-kernels.md), so sessions that wait after every few launches are with the worker in whose context their
// streams are: their home.
// That is the first worker's, until there are more of them than one worker serves well; then they spread over the homes (side_context.hpp). A
// session that posts long runs costs decoding and filling graphs instead, and goes where there is least of that: if it posts much, or its worker is
// busy with all of them together. So does one that takes all the time its worker gives it and waits for nothing; and of a busy worker whoever takes a
// good part of its time, whatever with: look-ups, handles and refused records cost time as launches do. Where none of them does and all of them
// together keep it busy, as newcomers that come and go do, those who wait go elsewhere, and come back when it is better.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "broker/executor/streams/stream_set.hpp"

namespace mpsshim::broker {

enum class Placement : std::uint8_t { stay, home, elsewhere };

// Whether a session waits after every few launches, however seldom it comes.
[[nodiscard]] constexpr bool has_short_runs(const StreamSet::Pace& done) {
  constexpr std::uint64_t kShortRun = 12;  // operations a fence
  return done.operations < kShortRun * done.fences;
}

// The same, for one that has done enough in some milliseconds to judge by.
[[nodiscard]] constexpr bool waits_often(const StreamSet::Pace& done, std::uint64_t milliseconds) {
  constexpr std::uint64_t kSome = 10;  // operations a millisecond
  return done.operations >= kSome * milliseconds && has_short_runs(done);
}

// What else is known of a session and its worker.
struct AtWorker {
  bool is_at_home = false;
  std::uint64_t full_turns = 0;  // how often it was left for others before it was through (TurnBudget)
  unsigned busy_percent = 0;     // of its worker's time, for sessions that it keeps
  unsigned time_percent = 0;     // of its worker's time, for this session
  unsigned others_percent = 0;   // of its worker's time, for what is not of sessions with short runs; away from home: of its home's
  unsigned delayed_percent = 0;  // of its worker's time, in which that stood without a core
};

// It takes all the time that its worker gives it.
[[nodiscard]] constexpr bool has_all_its_turns(const AtWorker& at, std::uint64_t milliseconds) {
  constexpr std::uint64_t kMillisecondsATurn = 2;
  return at.full_turns * kMillisecondsATurn >= milliseconds;
}

// Between the bounds it stays where it is.
[[nodiscard]] constexpr Placement placement(const StreamSet::Pace& done, std::uint64_t milliseconds, const AtWorker& at) {
  constexpr std::uint64_t kSome = 10;    // operations a millisecond: enough to judge by
  constexpr std::uint64_t kMany = 200;   // worth a worker
  constexpr unsigned kBusyPercent = 50;  // others would wait for the worker as often as not
  constexpr std::uint64_t kLongRun = 32;  // operations a fence
  constexpr unsigned kGoodPartPercent = 10;
  constexpr unsigned kQuietPercent = 25;  // at home again, it would not have to go soon
  if (!at.is_at_home) return waits_often(done, milliseconds) && at.others_percent < kQuietPercent ? Placement::home : Placement::stay;
  if (at.others_percent >= kBusyPercent && has_short_runs(done)) return Placement::elsewhere;
  const bool is_part_of_much = at.busy_percent >= kBusyPercent && done.operations >= kSome * milliseconds;
  const bool is_much = done.operations >= kMany * milliseconds || is_part_of_much || has_all_its_turns(at, milliseconds);
  const bool takes_time = at.busy_percent >= kBusyPercent && at.time_percent >= kGoodPartPercent && done.operations >= kLongRun * done.fences;
  return takes_time || (is_much && done.operations >= kLongRun * done.fences) ? Placement::elsewhere : Placement::stay;
}

// A worker, to one that may be given a session that has left its home.
struct WorkerLoad {
  unsigned work_percent = 0;  // of its time
  std::size_t sessions = 0;
  bool has_waiting = false;  // sessions that wait often
};

inline constexpr unsigned kFullPercent = 60;
inline constexpr unsigned kOverfullPercent = 85;

// How much of a worker's time is to be free for it elsewhere. What it had says little where it would have taken more; and whoever waits after
// every few launches is not to wait for others.
[[nodiscard]] constexpr unsigned expected_percent(const StreamSet::Pace& done, std::uint64_t milliseconds, const AtWorker& at) {
  const unsigned work_percent = at.time_percent * (100 - at.delayed_percent) / 100;
  return has_all_its_turns(at, milliseconds) || has_short_runs(done) ? std::max(work_percent, kFullPercent) : work_percent;
}

// Which of them takes a session with so much work: the fullest that has room for it, so that no more workers are awake than are needed. They would
// take cores from the clients, and stand before each other's calls in the driver. Where none has room, the one with the least to do.
[[nodiscard]] constexpr std::size_t best_place(std::span<const WorkerLoad> workers, unsigned percent) {
  const auto has_room = [percent](const WorkerLoad& worker) { return !worker.has_waiting && worker.work_percent + percent <= kFullPercent; };
  std::size_t best = 0;
  for (std::size_t i = 1; i < workers.size(); ++i) {
    const WorkerLoad &one = workers[i], &other = workers[best];
    if (has_room(one) != has_room(other)) {
      best = has_room(one) ? i : best;
    } else if (has_room(one)) {
      best = one.work_percent > other.work_percent ? i : best;
    } else {
      const auto order = [](const WorkerLoad& worker) { return std::pair(worker.work_percent, worker.sessions); };
      best = order(one) < order(other) ? i : best;
    }
  }
  return best;
}

// Whether a worker gives sessions on that are not at home: it has more than it can do, or so little that it need not be awake for it. One after the
// other, so long after the last one.
[[nodiscard]] constexpr bool wants_relief(unsigned work_percent, std::chrono::nanoseconds passed) {
  constexpr std::chrono::milliseconds kReliefInterval{10};
  constexpr std::chrono::milliseconds kGatherInterval{100};
  constexpr unsigned kSparsePercent = 40;
  return work_percent >= kOverfullPercent ? passed >= kReliefInterval : work_percent < kSparsePercent && passed >= kGatherInterval;
}

// Whether it is better there for one that takes so much.
[[nodiscard]] constexpr bool is_relief(unsigned work_percent, unsigned percent, unsigned work_percent_there) {
  constexpr unsigned kWorthIt = 10;
  if (work_percent >= kOverfullPercent) return work_percent_there + percent + kWorthIt <= work_percent;
  return work_percent_there > work_percent && work_percent_there + percent <= kFullPercent;
}

// Whether one worker serves so many sessions that wait often badly: they wait for it, not for the GPU.
[[nodiscard]] constexpr bool needs_more_homes(std::size_t waiting) { return waiting > 2; }

// Whether a worker that has so many sessions that wait often gives one to a home that has so many.
[[nodiscard]] constexpr bool has_too_many(std::size_t waiting, std::size_t elsewhere) {
  return needs_more_homes(waiting) && waiting >= elsewhere + 2;
}

}  // namespace mpsshim::broker
