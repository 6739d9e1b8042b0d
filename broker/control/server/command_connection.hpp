// SPDX-License-Identifier: Apache-2.0
// One mpsctl at control.sock: a packet with a line of text comes in; packets of text go out, then the connection is closed.
// The first line of the answer is "ok" or "error", the rest is for the reader. Same user or root only.
// Owned by Server; the control process's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/server/commands.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

inline constexpr std::size_t kMaxCommandBytes = proto::kMaxMessageBytes;

class CommandConnection {
 public:
  // `on_end` is called once; the connection is to be destroyed after the current callback has returned.
  CommandConnection(EventLoop& loop, const Commands& commands, proto::Socket socket, std::function<void()> on_end);
  // The command that is still to be answered, or "".
  [[nodiscard]] const std::string& pending() const { return pending_; }
  [[nodiscard]] int fd() const { return socket_.fd(); }
  // For whoever destroys it to close.
  [[nodiscard]] proto::Socket take_socket() { return std::move(socket_); }
  static void answer_on(const proto::Socket& socket, const Commands::Result& result);

 private:
  void on_events();
  void answer(const std::string& line, const Commands::Result& result) const;

  const Commands& commands_;
  proto::Socket socket_;
  std::string pending_;
  const std::function<void()> on_end_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that may come after our end
  EventLoop::Watch watch_;
  EventLoop::Timer deadline_;
};

}  // namespace mpsshim::broker::control
