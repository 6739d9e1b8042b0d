// SPDX-License-Identifier: Apache-2.0
// Launches executors that the test plays: all their lives, the last one behind.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/control/processes/executor_process.hpp"
#include "tests/unit/control/support/executor_peer.hpp"

namespace mpsshim::broker::control::testing {

class PeerLauncher final : public ExecutorLauncher {
 public:
  explicit PeerLauncher(EventLoop& loop) : loop_(loop) {}
  std::optional<ExecutorLife> launch(const ExecutorOptions& options) override {
    ExecutorLife life;
    lives.push_back(std::make_unique<ExecutorPeer>(loop_, options, life));
    return life;
  }
  void kill(const ExecutorLife& life) override {
    for (auto& peer : lives) {
      if (peer->pid != life.pid || peer->dead) continue;
      peer->killed = true;
      peer->die();
    }
  }
  void halt(const ExecutorLife& life) override {
    for (auto& peer : lives) peer->halted |= peer->pid == life.pid;
  }
  bool stands_still(const ExecutorLife& life) override {
    return std::ranges::any_of(lives,
                               [&](const auto& peer) { return peer->pid == life.pid && (peer->dead || (peer->halted && peer->stands_still)); });
  }
  std::string reap(const ExecutorLife&) override { return "ended as the test wished"; }
  ExecutorPeer& last() { return *lives.back(); }

  std::vector<std::unique_ptr<ExecutorPeer>> lives;

 private:
  EventLoop& loop_;
};

}  // namespace mpsshim::broker::control::testing
