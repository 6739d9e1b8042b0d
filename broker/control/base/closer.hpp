// SPDX-License-Identifier: Apache-2.0
// Closes what a stranger has sent, where nobody waits. The last close of a descriptor is its maker's affair: a socket lingers as long as its
// maker has said, a file of FUSE is flushed by a process that need not answer; and a socket takes with it what lies in it unread. So the control
// process's own thread closes only what it has made itself, or knows the kind of; anything else is given to a Closer.
//
// A thread of its own, from the beginning: what the broker holds does not depend on what clients do. While something is under way the thread is
// sent a signal every millisecond, which ends the lingering of sockets, those inside others included. A flush of FUSE cannot be ended: it holds up
// what is given to this closer and nothing else, so whoever gives has to bound how much of it one process can make wait.
// Used by the control process's thread alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class Closer {
 public:
  explicit Closer(EventLoop& loop);
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer();  // does not wait for what is under way, and calls nobody

  // `closed` is called from the loop once all of `files` are. Not before this has returned.
  void close(std::vector<proto::FileDescriptor> files, std::function<void()> closed);
  // Calls of close() whose files are not closed yet.
  [[nodiscard]] std::size_t pending() const { return pending_; }

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);
  void hear();
  void hurry();

  EventLoop& loop_;
  const std::shared_ptr<Shared> shared_;  // also the thread's, which may outlive this
  std::size_t pending_ = 0;
  EventLoop::Watch watch_;
  EventLoop::Timer timer_;
  std::thread thread_;
};

}  // namespace mpsshim::broker::control
