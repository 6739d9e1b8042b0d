// SPDX-License-Identifier: Apache-2.0
// Notices early that the GPU may have stopped. After a fault compute stands still at once, but the driver says so only some 100 ms later; work
// that is issued meanwhile is lost with its client. So each stream is measured against itself: how long it took of late from one completed
// position to the next. One that stands twice as long is *overdue*, and the GPU is worth a probe. A kernel that is merely longer than its
// forerunners makes its stream's measure grow with each probe that comes back, so it causes few of them.
// Fed with every progress word in turn, again and again. Used by the fault watch's thread; free of the driver, time is the caller's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace mpsshim::broker {

class StallSense {
 public:
  using Clock = std::chrono::steady_clock;
  // `look_interval`: how often it will be fed; nothing shorter than a few of them can be measured.
  explicit StallSense(Clock::duration look_interval) { set_look_interval(look_interval); }
  void set_look_interval(Clock::duration interval) { shortest_ = std::max<Clock::duration>(kShortest, 2 * interval); }

  struct Verdict {
    bool busy = false;         // some stream has work in flight
    bool ended = false;        // some work has, since the last conclusion
    bool active = false;       // one of the two
    bool overdue = false;      // some stream stands longer than it should
    Clock::duration quiet{0};  // nothing has ended anywhere for so long; 0 while nothing is in flight
  };

  void see(std::uint32_t index, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, Clock::time_point now);
  // What all streams together say that were seen since the last call.
  [[nodiscard]] Verdict conclude(Clock::time_point now);
  // A probe has come back: what stands is merely long.
  void absolve(Clock::time_point now);

 private:
  static constexpr std::chrono::microseconds kShortest{60};
  static constexpr std::uint32_t kEnough = 8;  // ends that a stream must have shown before it is measured

  struct Stream {
    std::uint64_t session = 0;
    std::uint32_t completed = 0;
    std::uint32_t ends = 0;
    bool is_busy = false;
    bool is_overdue = false;
    Clock::time_point since{};  // it has stood at `completed`, with work in flight
    Clock::duration usual{0};   // the longest of late; forgets an eighth with each shorter one
  };

  void ended(Stream& stream, Clock::duration took, Clock::time_point now);

  Clock::duration shortest_{};
  std::vector<Stream> streams_;
  Clock::time_point last_end_{};
  bool any_busy_ = false;
  bool any_ended_ = false;
  bool any_overdue_ = false;
};

}  // namespace mpsshim::broker
