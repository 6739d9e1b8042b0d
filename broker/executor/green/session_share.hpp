// SPDX-License-Identifier: Apache-2.0
// Where sessions run that may use a part of the multiprocessors only (an active thread percentage below 100): in green contexts of that many. The
// device is cut into parts of equal size that have no multiprocessor in common, the smallest that the driver makes (proto::partition_unit); a share
// is a run of neighbouring parts. Of some devices the driver leaves over more than such a part has (12 of an H100's
// 132): that is one more part, the last, so that clients who together may have the whole device need not share. Of all such runs the one is taken
// that the fewest sessions have, so that clients lie side by side as long as there is room, and on top of each other when there is none. Sessions
// with the same run have the same green context; it ends with the last of them, unless it was made at the executor's start (make_ready()): of runs
// that are as good such a one is taken, since a green context is made in a quiet window, which waits for all kernels. Sessions of a group have the
// group's run among them, so what one leaves idle another uses; one that may have less has a run within that.
//
// A session with a static partition (docs/execution.md) has the parts that the control process has given it, wherever others are: that gives none to
// two partitions, and no session a percentage then.
//
// SessionShares is the executor's; SessionShare is one session's hold of one. A green context is made in a quiet window (green_context.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/executor/green/green_resources.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

struct ExecutorCore;

// What a session is to have, in hundredths of a percent; 0: all. By itself, and as one of a group; 0: of none. Or parts that are named, a bit each.
struct ShareWish {
  std::uint32_t percentage = 0;
  std::uint64_t group = 0;
  std::uint32_t group_percentage = 0;
  std::uint64_t chunks = 0;
  // Of SessionOpen or SessionProvision.
  template <typename Message>
  [[nodiscard]] static ShareWish of(const Message& message) {
    return of(message.thread_percentage, message.group, message.group_percentage, message.chunks);
  }
  [[nodiscard]] static ShareWish of(std::uint32_t percentage, std::uint64_t group, std::uint32_t group_percentage, std::uint64_t chunks);
  [[nodiscard]] bool is_whole() const { return percentage == 0 && group_percentage == 0 && chunks == 0; }
  [[nodiscard]] std::string text() const;  // "25.0 % of the multiprocessors"
  bool operator==(const ShareWish&) const = default;
};

// What the driver cuts a device into.
struct DeviceParts {
  unsigned count = 0;  // at most kMostChunks
  unsigned unit = 0;   // multiprocessors of each
  unsigned all = 0;    // multiprocessors
  int major = 0;       // compute capability
  [[nodiscard]] unsigned rest() const { return all - count * unit; }  // which no part has
};
// No part at all is an error, too. Needs no context.
[[nodiscard]] CUresult measure_parts(const Driver& driver, CUdevice device, DeviceParts& parts);
// Of all devices, by ordinal: static partitions of one are made before its own executor begins. 0: none.
void count_parts(const Driver& driver, std::span<std::uint32_t> counts);

// Counts for its run, and its group, as long as it lasts.
struct SessionShare {
  GreenContextRef green;
  std::shared_ptr<void> use;
};

class SessionShares {
 public:
  SessionShares(ExecutorCore& core, ResourceDescriptors& descriptors) : core_(core), descriptors_(descriptors) {}
  SessionShares(const SessionShares&) = delete;

  static constexpr std::size_t kMostReady = 64;

  // Runs for sessions of these percentages, that lie side by side as far as there is room; of more than half of the device one from each end. Nothing
  // runs yet. What the driver refuses is logged, and made when it is wanted.
  void make_ready(std::span<const std::uint32_t> percentages);
  // What is no whole wish, where that needs nothing to be made. Any thread.
  [[nodiscard]] bool find(const ShareWish& wish, SessionShare& share);
  // The same, made if need be. In a quiet window.
  [[nodiscard]] CUresult make(const ShareWish& wish, SessionShare& share);

 private:
  struct Run {
    unsigned first = 0;  // of the parts, which go round
    unsigned count = 0;
    std::uint64_t chunks = 0;  // not 0: these parts, in place of a run (proto/sm_partition.hpp)
    auto operator<=>(const Run&) const = default;
  };
  struct Made {
    std::weak_ptr<GreenContext> green;
    unsigned users = 0;
    GreenContextRef ready;  // it stays, also without users
  };

  struct Group {
    Run run;
    std::uint32_t percentage = 0;
    unsigned users = 0;
  };

  [[nodiscard]] CUresult measure() REQUIRES(mutex_);
  [[nodiscard]] unsigned units(std::uint32_t percentage) const REQUIRES(mutex_);
  [[nodiscard]] Run choose(const ShareWish& wish) REQUIRES(mutex_);
  // `within`: that run, or nullptr: the whole device. Sessions of `leaving`, if given, count for nothing in its run.
  [[nodiscard]] Run least_used(unsigned count, const Run* within, const Group* leaving) const REQUIRES(mutex_);
  [[nodiscard]] bool is_ready(const Run& run) const REQUIRES(mutex_);
  [[nodiscard]] std::vector<Run> side_by_side(unsigned count) const REQUIRES(mutex_);
  [[nodiscard]] unsigned load_of(const Run& run, const Group* leaving) const REQUIRES(mutex_);
  // By number, and kRemainderChunk.
  [[nodiscard]] std::vector<unsigned> parts_of(const Run& run) const REQUIRES(mutex_);
  [[nodiscard]] unsigned places() const REQUIRES(mutex_) { return parts_ + (has_rest_ ? 1 : 0); }
  [[nodiscard]] std::shared_ptr<void> use(const Run& run, std::uint64_t group) REQUIRES(mutex_);
  void end_use(const Run& run, std::uint64_t group);
  [[nodiscard]] CUresult make_green(const Run& run, GreenContextRef& green);

  ExecutorCore& core_;
  ResourceDescriptors& descriptors_;
  Mutex mutex_;
  std::map<Run, Made> made_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Group> groups_ GUARDED_BY(mutex_);  // that have sessions here
  unsigned parts_ GUARDED_BY(mutex_) = 0;                     // of equal size, of the device; 0: not asked yet
  bool has_rest_ GUARDED_BY(mutex_) = false;                  // one more, behind them, of what is left over
  unsigned unit_ GUARDED_BY(mutex_) = 0;   // multiprocessors of each
  unsigned all_ GUARDED_BY(mutex_) = 0;    // multiprocessors
  int major_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::broker
