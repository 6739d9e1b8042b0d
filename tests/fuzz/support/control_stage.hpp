// SPDX-License-Identifier: Apache-2.0
// A control process without listening sockets or processes, for fuzz targets: its loop, its SessionManager, and an executor that opens and
// closes whatever session it is told to. One thread; everything happens in turn().
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "broker/control/manager/session_manager.hpp"
#include "broker/control/server/client_connection.hpp"

namespace mpsshim::fuzz {

// The other end of the link: answers SessionOpen and SessionClose, and lets go of everything else.
class ObligingExecutor final : public broker::control::ExecutorLauncher {
 public:
  std::optional<broker::control::ExecutorLife> launch(const broker::ExecutorOptions& options) override;
  void kill(const broker::control::ExecutorLife& life) override;
  void halt(const broker::control::ExecutorLife&) override {}
  bool stands_still(const broker::control::ExecutorLife&) override { return true; }
  std::string reap(const broker::control::ExecutorLife&) override { return "ended"; }

  void ready();
  // True if anything had come.
  bool serve();
  [[nodiscard]] const std::set<std::uint64_t>& open_sessions() const { return open_; }
  void send(const broker::OutgoingMessage& message);
  void take(broker::ReceivedMessage& received);

 private:
  proto::Socket socket_;
  proto::FileDescriptor death_;
  proto::FileDescriptor facts_;
  std::set<std::uint64_t> open_;
};

class ControlStage {
 public:
  ControlStage();

  // A client's end of a connection of its own.
  [[nodiscard]] proto::Socket connect();
  // Until nothing more happens.
  void settle();
  [[nodiscard]] broker::control::SessionManager& manager() { return manager_; }
  // All have hung up: until nothing is left of them.
  void await_end();
  // A turn of its loop, and of the executor; waits at most so long. True if the executor had something to do.
  bool turn(int timeout_ms);

 private:
  broker::control::EventLoop loop_;
  broker::control::Disposal disposal_{loop_};
  ObligingExecutor executor_;
  broker::control::SessionManager manager_;
  std::map<std::uint64_t, std::unique_ptr<broker::control::ClientConnection>> connections_;
  std::uint64_t next_connection_ = 1;
  std::size_t closing_ = 0;  // connections that are gone, but for their socket and files
};

}  // namespace mpsshim::fuzz
