// SPDX-License-Identifier: Apache-2.0
// The words that the GPU writes behind a stream's work: the client's fence, then the executor's progress. Once progress is seen, the fence is.
//
// Two ways. A *kernel* of one thread is the usual one, as the last node of a chain or a graph by itself: a stream's memory operation would
// hold up every stream that shares its hardware connection until the work before it has ended, a kernel holds up nobody, and launching it
// costs less. *Memory operations* are seen a third of a microsecond sooner; they are for a stream that is alone and whose work is short.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

struct WordWrites {
  CUdeviceptr fence = 0;  // 0: none
  CUdeviceptr progress = 0;
  std::uint32_t fence_value = 0;
  std::uint32_t progress_value = 0;
};

// kernelParams of the writing kernel, pointing into `writes`.
struct WriterParameters {
  explicit WriterParameters(WordWrites& writes) : addresses{&writes.fence, &writes.progress, &writes.fence_value, &writes.progress_value} {}
  void* addresses[4];
};

// Which stream handed words to the driver last. Any thread.
class LastWriter {
 public:
  // True if stream `index` was the last one already.
  [[nodiscard]] bool again(std::uint32_t index) {
    if (last_.load(std::memory_order_relaxed) == index) return true;
    last_.store(index, std::memory_order_relaxed);
    return false;
  }

 private:
  alignas(64) std::atomic<std::uint32_t> last_{~0u};
};

// Whether a stream has been alone for a while, and its work short: told by whose words were written last, and by how soon they were there.
class ShortAndAlone {
 public:
  using Clock = std::chrono::steady_clock;
  // Words are about to be written. `are_last_done()` says whether those before have come; it is asked only where it matters.
  template <typename AreLastDone>
  [[nodiscard]] bool note(bool was_last_writer, AreLastDone are_last_done, Clock::time_point (*clock)() = Clock::now) {
    if (!was_last_writer) {
      streak_ = 0;
      return false;
    }
    const Clock::time_point now = clock();
    const bool is_short = now - last_ < kShort && are_last_done();
    last_ = now;
    streak_ = is_short ? streak_ + 1 : 0;
    return streak_ >= kStreak;
  }

 private:
  static constexpr std::chrono::microseconds kShort{100};
  static constexpr std::uint32_t kStreak = 32;
  Clock::time_point last_{};
  std::uint32_t streak_ = 0;
};

}  // namespace mpsshim::broker
