// SPDX-License-Identifier: Apache-2.0
// Which of the device's stream priorities clients' streams have, by their clients' own priority (CUDA_MPS_CLIENT_PRIORITY,
// set_default_client_priority). Streams of a client below normal all have the least. While there is such a client, streams of the others are one step
// above what they ask for, so that the least of them comes before the greatest of those; without one they have what they ask for. Lower numbers come
// first. Of ExecutorParts. Any thread; range() before there are sessions.
#pragma once

#include <algorithm>
#include <atomic>

namespace mpsshim::broker {

class PriorityRanks {
 public:
  void set_range(int least, int greatest) {
    least_ = least;
    greatest_ = std::min(greatest, least);
  }

  // A session below normal begins, and ends.
  void enter() { below_.fetch_add(1, std::memory_order_relaxed); }
  void leave() { below_.fetch_sub(1, std::memory_order_relaxed); }
  // Whether the others are a step higher.
  [[nodiscard]] bool are_apart() const { return below_.load(std::memory_order_relaxed) != 0; }

  [[nodiscard]] int priority(bool is_below_normal, int asked) const {
    if (is_below_normal) return least_;
    return are_apart() ? std::max(std::min(asked, least_) - 1, greatest_) : asked;
  }

 private:
  int least_ = 0;
  int greatest_ = 0;
  std::atomic<unsigned> below_{0};
};

}  // namespace mpsshim::broker
