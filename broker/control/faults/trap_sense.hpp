// SPDX-License-Identifier: Apache-2.0
// Knows of a trap before the driver says so. The kernel log tells within milliseconds that an executor's work was stopped for good (Xid 43). After a
// failed assertion, which is such a stop too, the driver gives the error at once; after a trap the call that asks for it does not return for 0.4 to
// 0.8 s, and no other process can begin to use the GPU meanwhile; after a misaligned access or an illegal instruction the log has told of an
// exception too (Xid 13; docs/experiments/2026-11-22-what-a-trap-holds-up.md). So: stopped, no exception, and a query that stays out is a trap. Owned
// by ManagedExecutor; the control process's thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "broker/control/base/call_watch.hpp"
#include "broker/control/base/event_loop.hpp"

namespace mpsshim::broker::control {

class TrapSense {
 public:
  // Far longer than lines of the log are apart that belong together.
  static constexpr std::chrono::milliseconds kExceptionCounts{1'000};
  // Far longer than a query takes that has an answer, far shorter than one after a trap.
  static constexpr std::chrono::milliseconds kQueryLimit{20};
  static constexpr unsigned kLooks = 50;  // a second: by then a query has begun, and the driver has reported anything else

  explicit TrapSense(EventLoop& loop) : loop_(loop) {}
  // The log has told of the stop. `found` is called once, when a query of that life has been out for so long. `calls` stays until end().
  void begin(const CallWatch& calls, std::function<void()> found);
  void end() { look_.reset(); }
  // The log has told of an exception, not whose it is: what is stopped now may be that one's.
  void rule_out();

 private:
  void look(const CallWatch& calls, std::optional<CallWatch::Instance> before, unsigned looks);

  EventLoop& loop_;
  EventLoop::Timer look_;
  EventLoop::Clock::time_point ruled_out_until_{};
  std::function<void()> found_;
};

}  // namespace mpsshim::broker::control
