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

#include "broker/executor/base/own_memory.hpp"

namespace mpsshim::broker {

struct WordWrites {
  OwnWord fence;  // none: progress alone
  OwnWord progress;
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

// What a stream's last rounds were like: told by whose words were written last, and by how soon they were there.
class Rhythm {
 public:
  using Clock = std::chrono::steady_clock;
  // Words are about to be written. `are_last_done()` says whether those before have come.
  template <typename AreLastDone>
  void note(bool was_last_writer, AreLastDone are_last_done, Clock::time_point (*clock)() = Clock::now) {
    const Clock::time_point now = clock();
    const Clock::duration since = now - last_;
    last_ = now;
    const bool is_done = since < kShort && are_last_done();
    short_ = is_done ? short_ + 1 : 0;
    alone_ = is_done && was_last_writer && since < kShortAlone ? alone_ + 1 : 0;
  }
  // Words are due, and those before have not come.
  void note_under_way() { short_ = alone_ = 0; }
  // Its work is short, and its client likely to wait for it soon.
  [[nodiscard]] bool is_short() const { return short_ >= kShortStreak; }
  // That, and no other stream is at work.
  [[nodiscard]] bool is_short_and_alone() const { return alone_ >= kAloneStreak; }

 private:
  static constexpr std::chrono::microseconds kShort{1'000};
  static constexpr std::chrono::microseconds kShortAlone{100};
  static constexpr std::uint32_t kShortStreak = 2;
  static constexpr std::uint32_t kAloneStreak = 32;
  Clock::time_point last_{};
  std::uint32_t short_ = 0;
  std::uint32_t alone_ = 0;
};

}  // namespace mpsshim::broker
