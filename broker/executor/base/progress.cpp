// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/progress.hpp"

namespace mpsshim::broker {

std::optional<std::uint32_t> Progress::take() {
  std::lock_guard lock(mutex_);
  std::uint32_t index = used_;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (used_ < kProgressStreams) {
    ++used_;
  } else {
    return std::nullopt;
  }
  StreamProgress& stream = table_.stream[index];
  stream.session.store(0, std::memory_order_relaxed);
  stream.issued.store(0, std::memory_order_relaxed);
  stream.completed.store(0, std::memory_order_release);
  return index;
}

void Progress::give_back(std::uint32_t index) {
  std::lock_guard lock(mutex_);
  free_.push_back(index);
}

}  // namespace mpsshim::broker
