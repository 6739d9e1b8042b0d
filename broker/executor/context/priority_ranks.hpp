// SPDX-License-Identifier: Apache-2.0
// Which of the device's stream priorities clients' streams have, by their clients' own priority (CUDA_MPS_CLIENT_PRIORITY,
// set_default_client_priority): 0 is normal, each higher one a rank below that. Streams of a client below normal are all alike, the device's least
// for the last rank that has clients. Streams of each rank are a step above those of the next behind that has clients; a normal client's are so many
// steps above what they ask for, so that the least of them comes before all others'. Lower numbers come first. Of ExecutorParts. Any thread;
// set_range() before there are sessions.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "proto/provision.hpp"

namespace mpsshim::broker {

class PriorityRanks {
 public:
  void set_range(int least, int greatest) {
    least_ = least;
    greatest_ = std::min(greatest, least);
  }

  // A session of that rank begins, and ends.
  void enter(unsigned rank) { sessions_.fetch_add(one_of(rank), std::memory_order_relaxed); }
  void leave(unsigned rank) { sessions_.fetch_sub(one_of(rank), std::memory_order_relaxed); }

  // How many ranks behind that one have sessions.
  [[nodiscard]] int ranks_behind(unsigned rank) const {
    const std::uint64_t sessions = sessions_.load(std::memory_order_relaxed);
    int behind = 0;
    for (unsigned other = rank + 1; other < proto::kMostClientPriorities; ++other) behind += (sessions >> shift_of(other) & kMask) != 0 ? 1 : 0;
    return behind;
  }
  [[nodiscard]] int priority(unsigned rank, int asked) const {
    const int behind = ranks_behind(rank);
    const int own = rank == 0 ? asked : least_;
    return behind == 0 ? own : std::max(std::min(own, least_) - behind, greatest_);
  }

 private:
  static constexpr unsigned kBits = 16;  // of a rank's sessions
  static constexpr std::uint64_t kMask = (1U << kBits) - 1;
  static_assert(proto::kMostClientPriorities * kBits <= 64);

  static unsigned shift_of(unsigned rank) { return kBits * std::min(rank, proto::kMostClientPriorities - 1); }
  static std::uint64_t one_of(unsigned rank) { return rank == 0 ? 0 : std::uint64_t{1} << shift_of(rank); }  // those of normal ones matter to nobody

  int least_ = 0;
  int greatest_ = 0;
  std::atomic<std::uint64_t> sessions_{0};
};

}  // namespace mpsshim::broker
