// SPDX-License-Identifier: Apache-2.0
// Answers who asks for the broker's figures over HTTP (--metrics). Nobody is waited for: sockets do not block, an answer is made whole and sent as it
// is taken, and whoever has not asked, or not read, within kTimeLimit is dropped. So is the oldest of more than kMostConnections. An answer is made
// at most every kFreshness; who asks in between gets the same. Owned by Server; the control process's thread. Requests may be any bytes, of any
// process of this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/server/metrics_address.hpp"

namespace mpsshim::broker::control {

class MetricsServer {
 public:
  static constexpr std::size_t kMostConnections = 16;
  static constexpr std::chrono::milliseconds kTimeLimit{5'000};
  static constexpr std::chrono::milliseconds kFreshness{100};

  // `make`: the answer, of how many connections were given up.
  MetricsServer(EventLoop& loop, MetricsAddress address, std::function<std::string(std::uint64_t dropped)> make);
  MetricsServer(const MetricsServer&) = delete;
  ~MetricsServer();

  [[nodiscard]] bool listen(std::string& why);
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  using Text = std::shared_ptr<const std::string>;
  struct Connection {
    proto::FileDescriptor socket;
    EventLoop::Watch watch;
    EventLoop::Timer limit;
    std::string request{};
    std::string head{};  // of the answer
    Text body{};
    std::size_t sent = 0;
    bool is_answered = false;  // all is sent: what still comes is thrown away until the other side has closed
  };

  void accept();
  void on_events(std::uint64_t id);
  [[nodiscard]] bool read(Connection& connection);
  [[nodiscard]] bool answer(Connection& connection);
  [[nodiscard]] bool send_more(Connection& connection);
  void end(std::uint64_t id);
  void drop(std::uint64_t id);
  [[nodiscard]] Text figures();

  EventLoop& loop_;
  const MetricsAddress address_;
  const std::function<std::string(std::uint64_t)> make_;
  proto::FileDescriptor listener_;
  EventLoop::Watch listener_watch_;
  EventLoop::Timer pause_;
  Text figures_;
  EventLoop::Clock::time_point made_at_{};
  std::uint64_t next_id_ = 1;
  std::uint64_t dropped_ = 0;
  std::map<std::uint64_t, Connection> connections_;  // the oldest first
};

}  // namespace mpsshim::broker::control
