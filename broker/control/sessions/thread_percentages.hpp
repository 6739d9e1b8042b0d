// SPDX-License-Identifier: Apache-2.0
// What part of a device's multiprocessors each client may have, as operators set it: a default for servers to come, and what is set for a server. The
// manual's rules ("Volta MPS Execution Resource Provisioning"), which are those of MemoryLimits: a server takes the default with its first client,
// what is set for it later overrides that, and clients that are there keep theirs. A further server takes what its user's first one has then.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>

#include "broker/control/base/executor_id.hpp"
#include "broker/control/base/handover.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

class ThreadPercentages {
 public:
  // In hundredths of a percent, 1 to proto::kWholePercentage, as everywhere here.
  void set_default(std::uint32_t percentage) { default_ = percentage; }
  [[nodiscard]] std::uint32_t default_value() const { return default_; }

  void set(const ExecutorId& server, std::uint32_t percentage) { servers_[server] = percentage; }
  [[nodiscard]] std::uint32_t of_server(const ExecutorId& server) const {
    auto found = servers_.find(server);
    if (found == servers_.end()) found = servers_.find({server.device, 0, server.user});
    return found == servers_.end() ? default_ : found->second;
  }
  // Its first client.
  void begin(const ExecutorId& server) { servers_.try_emplace(server, of_server(server)); }
  void forget(const ExecutorId& server) { servers_.erase(server); }

  void save(StateWriter& state) const {
    state.number(default_);
    state.number(servers_.size());
    for (const auto& [id, percentage] : servers_) {
      state.number(id.device);
      state.number(id.ordinal);
      state.number(id.user);
      state.number(percentage);
    }
  }
  void restore(StateReader& state) {
    default_ = restored(state);
    for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
      ExecutorId id;
      id.device = static_cast<unsigned>(state.number());
      id.ordinal = static_cast<unsigned>(state.number());
      id.user = static_cast<uid_t>(state.number());
      servers_[id] = restored(state);
    }
  }

 private:
  [[nodiscard]] static std::uint32_t restored(StateReader& state) {
    const std::uint64_t percentage = state.number();
    if (percentage == 0 || percentage > proto::kWholePercentage) state.fail();
    return static_cast<std::uint32_t>(percentage);
  }

  std::uint32_t default_ = proto::kWholePercentage;
  std::map<ExecutorId, std::uint32_t> servers_;
};

}  // namespace mpsshim::broker::control
