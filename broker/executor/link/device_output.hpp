// SPDX-License-Identifier: Apache-2.0
// What kernels print. The driver writes it to this process's standard output (a memory file of the control process), at synchronisations, and
// does not say whose it was. So one session at a time has kernels under way that may print: it has the turn. When its kernels have ended and
// the driver was made to write (StreamQueue, Session::start_output), the text is that session's, and the next one has the turn.
//
// enter() and leave() by workers; deliver() by helpers, for the session that has the turn.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>

#include "broker/executor/link/control_link.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class DeviceOutput {
 public:
  explicit DeviceOutput(ControlLink& control);
  DeviceOutput(const DeviceOutput&) = delete;

  // True: the session has the turn and may launch. False: another has it, or waits for it; to be asked again.
  [[nodiscard]] bool enter(std::uint64_t session);
  // It has launched, and so gives the turn away in the end.
  void note_launch();
  // Neither has the turn any more nor waits for it.
  void leave(std::uint64_t session);
  // Others wait: who has the turn begins nothing more.
  [[nodiscard]] bool is_wanted() const { return is_wanted_.load(std::memory_order_relaxed); }

  // What the driver has written since the last call is the session's that has the turn. True: the control process was told of some.
  bool deliver();
  // The same in a process that is about to end, whatever other threads hold.
  void deliver_last();

 private:
  using Clock = std::chrono::steady_clock;

  void complain(std::uint64_t session) REQUIRES(mutex_);
  [[nodiscard]] bool deliver_locked() REQUIRES(mutex_);
  void drop_strays() REQUIRES(mutex_);

  ControlLink& control_;
  Mutex mutex_;
  std::uint64_t holder_ GUARDED_BY(mutex_) = 0;
  bool has_launched_ GUARDED_BY(mutex_) = false;   // the holder
  Clock::time_point taken_at_ GUARDED_BY(mutex_);  // by the holder
  bool is_late_ GUARDED_BY(mutex_) = false;        // the log has said so
  std::deque<std::uint64_t> waiting_ GUARDED_BY(mutex_);
  std::atomic<bool> is_wanted_{false};  // waiting_ is not empty; a late look costs a launch more or less
  std::int64_t delivered_ GUARDED_BY(mutex_) = 0;  // so much of the file
};

}  // namespace mpsshim::broker
