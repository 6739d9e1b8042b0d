// SPDX-License-Identifier: Apache-2.0
// The control process's end of the socket to one life of an executor. Sending never blocks and never fails for the caller: what the socket does
// not take at once waits in order, with descriptors of its own. What arrives is handed on whole; a packet of another size is a broken
// executor and closes the link.
// Owned by Executor; the control process's thread.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "broker/control_messages.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

class ExecutorLink {
 public:
  using Arrival = std::function<void(const ExecutorPacket&, proto::ReceivedFds&)>;
  ExecutorLink(EventLoop& loop, proto::Socket socket, Arrival on_arrival, std::function<void()> on_closed);

  void send(const ExecutorPacket& packet, std::span<const int> fds = {});
  // Hands on all that has arrived, to the last packet. For the moment after the executor's death.
  void drain();
  [[nodiscard]] bool is_open() const { return open_; }

 private:
  struct Outgoing {
    ExecutorPacket packet;
    std::vector<proto::FileDescriptor> fds;
  };
  void on_events(EventLoop::Events events);
  bool receive_one();
  void flush();
  void await_room();
  void close();
  [[nodiscard]] proto::SocketStatus try_send(const ExecutorPacket& packet, std::span<const int> fds);

  EventLoop& loop_;
  proto::Socket socket_;
  Arrival on_arrival_;
  std::function<void()> on_closed_;
  std::deque<Outgoing> outgoing_;
  bool open_ = true;
  bool is_short_ = false;  // the last try_send() met a shortage that is not this socket's
  EventLoop::Watch watch_;
  EventLoop::Timer again_;
};

}  // namespace mpsshim::broker::control
