// SPDX-License-Identifier: Apache-2.0
// Children of the program that was in this process before a hand-over (`mpsctl restart`) and that were ending then: executors, which a driver takes
// hundreds of milliseconds to take down, and whatever else nobody has to do with any more. They are reaped as they end.
// Owned by Server; the control process's thread.
#pragma once

#include <map>

#include <unistd.h>

#include "broker/control/base/event_loop.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class FormerChildren {
 public:
  explicit FormerChildren(EventLoop& loop) : loop_(loop) {}
  // All there are, before this program starts any of its own. Where the kernel does not list them (CONFIG_PROC_CHILDREN) those that have ended.
  void take();

 private:
  void await(pid_t pid);

  struct Child {
    proto::FileDescriptor pidfd;
    EventLoop::Watch end;
  };
  EventLoop& loop_;
  std::map<pid_t, Child> children_;
};

}  // namespace mpsshim::broker::control
