// SPDX-License-Identifier: Apache-2.0
// How much device memory each client may have, as operators set it: a default for servers to come, and what is set for a server. The manual's rules
// ("Volta MPS Device Memory Limit"): a server takes the default with its first client, and what is set for it later overrides that; clients that are
// there keep theirs; a client can only ask for less. Belongs to the server's number, so it outlives lives of the process. A further server of a user
// on a device, which nobody has asked for, takes what that user's first one has then: no client gets more by being placed there.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>

#include "broker/control/base/executor_id.hpp"
#include "broker/control/base/handover.hpp"

namespace mpsshim::broker::control {

class MemoryLimits {
 public:
  using ByDevice = std::map<unsigned, std::uint64_t>;  // bytes; not there: no limit

  void set_default(unsigned device, std::uint64_t bytes) { default_[device] = bytes; }
  [[nodiscard]] std::uint64_t default_of(unsigned device) const { return of(default_, device); }

  void set(const ExecutorId& server, unsigned device, std::uint64_t bytes) {
    begin(server);
    servers_[server][device] = bytes;
  }
  [[nodiscard]] std::uint64_t of_server(const ExecutorId& server, unsigned device) const { return of(limits_of(server), device); }
  // Its first client.
  void begin(const ExecutorId& server) {
    if (!servers_.contains(server)) servers_.emplace(server, ByDevice(limits_of(server)));
  }
  void forget(const ExecutorId& server) { servers_.erase(server); }

  void save(StateWriter& state) const {
    save(state, default_);
    state.number(servers_.size());
    for (const auto& [id, limits] : servers_) {
      state.number(id.device);
      state.number(id.ordinal);
      state.number(id.user);
      save(state, limits);
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
  [[nodiscard]] const ByDevice& limits_of(const ExecutorId& server) const {
    auto found = servers_.find(server);
    if (found == servers_.end()) found = servers_.find({server.device, 0, server.user});
    return found == servers_.end() ? default_ : found->second;
  }
  [[nodiscard]] static std::uint64_t of(const ByDevice& limits, unsigned device) {
    const auto found = limits.find(device);
    return found == limits.end() ? 0 : found->second;
  }
  static void save(StateWriter& state, const ByDevice& limits) {
    state.number(limits.size());
    for (const auto& [device, bytes] : limits) state.number(device), state.number(bytes);
  }
  [[nodiscard]] static ByDevice restored(StateReader& state) {
    ByDevice limits;
    for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
      const auto device = static_cast<unsigned>(state.number());
      limits[device] = state.number();
    }
    return limits;
  }

  ByDevice default_;
  std::map<ExecutorId, ByDevice> servers_;
};

}  // namespace mpsshim::broker::control
