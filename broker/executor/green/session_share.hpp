// SPDX-License-Identifier: Apache-2.0
// Where sessions run that may use a part of the multiprocessors only (an active thread percentage below 100): in green contexts of that many. The
// device is cut into parts of equal size that have no multiprocessor in common, the smallest that the driver makes (proto::partition_unit); a share
// is a run of neighbouring parts. Of all such runs the one is taken that the fewest sessions have, so that clients lie side by side as long as there
// is room, and on top of each other when there is none. Sessions with the same run have the same green context; it ends with the last of them.
//
// SessionShares is the executor's; SessionShare is one session's hold of one. A green context is made in a quiet window (green_context.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "broker/executor/green/green_resources.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

struct ExecutorCore;

// Counts for its run as long as it lasts.
struct SessionShare {
  GreenContextRef green;
  std::shared_ptr<void> use;
};

class SessionShares {
 public:
  SessionShares(ExecutorCore& core, ResourceDescriptors& descriptors) : core_(core), descriptors_(descriptors) {}
  SessionShares(const SessionShares&) = delete;

  // So many multiprocessors, in hundredths of a percent below proto::kWholePercentage, where that needs nothing to be made. Any thread.
  [[nodiscard]] bool find(std::uint32_t percentage, SessionShare& share);
  // The same, made if need be. In a quiet window.
  [[nodiscard]] CUresult make(std::uint32_t percentage, SessionShare& share);

 private:
  struct Run {
    unsigned first = 0;  // of the parts, which go round
    unsigned count = 0;
    auto operator<=>(const Run&) const = default;
  };
  struct Made {
    std::weak_ptr<GreenContext> green;
    unsigned users = 0;
  };

  [[nodiscard]] CUresult measure() REQUIRES(mutex_);
  [[nodiscard]] Run choose(std::uint32_t percentage) const REQUIRES(mutex_);
  [[nodiscard]] unsigned load_of(const Run& run) const REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<void> use(const Run& run) REQUIRES(mutex_);
  void end_use(const Run& run);
  [[nodiscard]] CUresult make_green(const Run& run, GreenContextRef& green);

  ExecutorCore& core_;
  ResourceDescriptors& descriptors_;
  Mutex mutex_;
  std::map<Run, Made> made_ GUARDED_BY(mutex_);
  unsigned parts_ GUARDED_BY(mutex_) = 0;  // of the device; 0: not asked yet
  unsigned unit_ GUARDED_BY(mutex_) = 0;   // multiprocessors of each
  unsigned all_ GUARDED_BY(mutex_) = 0;    // multiprocessors
  int major_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::broker
