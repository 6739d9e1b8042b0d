// SPDX-License-Identifier: Apache-2.0
// The control process's end of the socket to one life of an executor. Sending never blocks and never fails for the caller: what the socket does
// not take at once waits in order, with descriptors of its own. What arrives fits its row (executor_message.hpp): a packet of another
// size is of a broken executor and closes the link, what is wrong otherwise is left out.
// Owned by ManagedExecutor; the control process's thread.
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
  using Arrival = std::function<void(ReceivedMessage&)>;
  ExecutorLink(EventLoop& loop, proto::Socket socket, Arrival on_arrival, std::function<void()> on_closed);

  void send(const OutgoingMessage& message);
  // Hands on all that has arrived, to the last packet. For the moment after the executor's death.
  void drain();
  [[nodiscard]] bool is_open() const { return open_; }

 private:
  struct Outgoing {
    OutgoingMessage message;  // whose own descriptors were lent
    std::vector<proto::FileDescriptor> fds;
  };
  void on_events(EventLoop::Events events);
  bool receive_one();
  void flush();
  void await_room();
  void close();
  [[nodiscard]] proto::SocketStatus try_send(const OutgoingMessage& message, std::span<const int> fds);

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
