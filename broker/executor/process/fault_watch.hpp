// SPDX-License-Identifier: Apache-2.0
// Watches over the GPU while work is in flight. Two things nobody else would notice:
//  - *A fatal error that no driver call meets.* A client that only waits for its fence would wait for ever. The driver gives the context's
//    sticky error on every stream, so a stream of the watch's own is asked.
//  - *A fault before the driver knows of it.* After an illegal access compute stands still at once, but the error shows only some 100 ms later
//    (docs/experiments/2026-11-21-fault-in-time.md). Work issued meanwhile would be lost and its innocent client counted as busy. When a stream is
//    overdue (stall_sense.hpp), or nothing at all has ended for a millisecond, an empty kernel is launched on a stream of highest priority; until it
//    comes back, or others' work has ended meanwhile (stall_suspicion.hpp), `engine_stalled` keeps workers from reading the rings of idle sessions.
//    On a GPU that works it is back within some microseconds, unless it is full or the connection stands: there it may be out for milliseconds.
// Since it sees who has become idle, it gives VariableKeeper its turns; and since it sees who is at work, it counts that (BusyTime).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/process/busy_time.hpp"
#include "broker/executor/process/stall_sense.hpp"
#include "broker/executor/process/stall_suspicion.hpp"

namespace mpsshim::broker {

class FaultWatch {
 public:
  // `enter_thread` makes the context current in the watch's thread. `parts` is started. The watch's stream is made here, with the context
  // current: streams take device memory, so each has its place in the order in which a new life makes everything again.
  FaultWatch(ExecutorParts& parts, std::function<void()> enter_thread);
  FaultWatch(const FaultWatch&) = delete;
  ~FaultWatch();

 private:
  using Clock = std::chrono::steady_clock;

  void loop();
  [[nodiscard]] bool open();
  [[nodiscard]] StallSense::Verdict look(Clock::time_point now);
  void pause(Clock::time_point now, bool is_at_work);
  [[nodiscard]] Clock::duration look_interval(Clock::time_point now) const;
  void note_at_work(std::uint64_t session, Clock::time_point now);
  [[nodiscard]] bool is_alarm_due(Clock::time_point now);
  void launch_probe(Clock::time_point now);
  void await_probe();
  [[nodiscard]] bool probe_is_back() const;
  void look_at_probe(Clock::time_point now);

  ExecutorParts& parts_;
  std::function<void()> enter_thread_;
  CUstream stream_ = nullptr;
  std::uint32_t word_ = 0;              // of the progress table; its session is 0, so it is nobody's work
  std::uint32_t launched_ = 0;          // value of the last probe
  std::optional<std::uint32_t> probe_;  // under way: its value
  StallSuspicion suspicion_;            // meanwhile
  Clock::time_point last_alarm_{};      // probe of an overdue stream
  Clock::duration rest_{0};             // until the next one
  Clock::time_point last_query_{};
  Clock::time_point last_activity_{};
  Clock::time_point last_observation_{};
  const bool spare_cores_;
  bool are_variables_stale_ = false;  // a session's, that could soon be copied: as long as they are it would not survive an end
  StallSense sense_;
  BusyTime busy_time_;
  Clock::time_point last_change_{};
  Clock::time_point attentive_until_{};
  std::uint64_t busy_session_ = 0;
  std::uint64_t last_at_work_ = 0;  // a session
  Clock::time_point last_work_{};
  Clock::time_point several_until_{};  // more than one session is at work
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mpsshim::broker
