// SPDX-License-Identifier: Apache-2.0
// Wakes the fault watch when a session that was idle sends something. A client rings its session's doorbell when its worker sleeps; this
// listens to the same doorbells, by edges, beside the worker. A record that comes while the worker is still awake rings nothing: whoever waits
// here has seen nothing in flight for far longer than a worker stays awake, and looks again at the latest after its limit.
// Thread safe. Doorbells are the clients' to write: too many rings cost this thread alone.
#pragma once

#include <chrono>

#include "proto/segment.hpp"

namespace mpsshim::broker {

class ActivityBell {
 public:
  ActivityBell();
  ActivityBell(const ActivityBell&) = delete;

  // `doorbell` stays open until forget().
  void listen(int doorbell) const;
  void forget(int doorbell) const;

  void ring() const;
  // Until something rings, at most `limit`: whether it has rung.
  [[nodiscard]] bool wait(std::chrono::milliseconds limit) const;

 private:
  proto::FileDescriptor epoll_;
  proto::FileDescriptor own_;
};

}  // namespace mpsshim::broker
