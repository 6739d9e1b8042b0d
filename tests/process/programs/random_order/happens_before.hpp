// SPDX-License-Identifier: Apache-2.0
// What CUDA promises about the order of operations, as vector clocks: a lane is something that does one thing after the other (the host
// thread is lane 0, every stream is one), and a clock says how many operations of each lane have certainly come before.
//
// Only promises of the manual are believed. Where it is silent the clock knows less, and the generator of random operations adds an event
// or a wait that the driver could have done without; so a right driver can never be blamed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mpsshim::test {

inline constexpr std::size_t kHostLane = 0;

class Clock {
 public:
  [[nodiscard]] std::uint32_t seen(std::size_t lane) const { return lane < seen_.size() ? seen_[lane] : 0; }
  [[nodiscard]] bool covers(std::size_t lane, std::uint32_t index) const { return seen(lane) >= index; }
  [[nodiscard]] bool covers(const Clock& other) const {
    for (std::size_t lane = 0; lane < other.seen_.size(); ++lane) {
      if (seen(lane) < other.seen_[lane]) return false;
    }
    return true;
  }
  void join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (std::size_t lane = 0; lane < other.seen_.size(); ++lane) seen_[lane] = std::max(seen_[lane], other.seen_[lane]);
  }
  // The lane's next operation; its index.
  std::uint32_t advance(std::size_t lane) {
    if (seen_.size() <= lane) seen_.resize(lane + 1);
    return ++seen_[lane];
  }

 private:
  std::vector<std::uint32_t> seen_;
};

// One operation on a region of memory.
struct Access {
  std::size_t lane = kHostLane;
  std::uint32_t index = 0;  // 0: before everything
};

// Who touched a region last. A write must come after all that is noted here, a read after the write.
class Accesses {
 public:
  void note(Access access, bool writes) {
    if (writes) {
      reads_.clear();
      write_ = access;
      return;
    }
    std::erase_if(reads_, [&](const Access& earlier) { return earlier.lane == access.lane; });
    reads_.push_back(access);
  }
  [[nodiscard]] Access last_write() const { return write_; }

  // Calls visit(Access) for each access that an operation with this clock is not known to follow.
  template <typename Visit>
  void for_each_conflict(const Clock& clock, bool writes, Visit&& visit) const {
    if (!clock.covers(write_.lane, write_.index)) visit(write_);
    if (!writes) return;
    for (const Access& read : reads_) {
      if (!clock.covers(read.lane, read.index)) visit(read);
    }
  }

 private:
  Access write_;
  std::vector<Access> reads_;
};

}  // namespace mpsshim::test
