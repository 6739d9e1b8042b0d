// SPDX-License-Identifier: Apache-2.0
// What operators set for servers: a default for those to come, and what is set for one. By the manual's rules a server takes the default with its
// first client, and what is set for it later overrides that. It belongs to the server's number, so it outlives lives of the process. A further server
// of a user on a device, which nobody has asked for, takes what that user's first one has then. Of MemoryLimits and ThreadPercentages.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "broker/control/base/executor_id.hpp"
#include "broker/control/base/handover.hpp"

namespace mpsshim::broker::control {

template <typename Value>
class ServerSettings {
 public:
  explicit ServerSettings(Value initial) : default_(std::move(initial)) {}

  [[nodiscard]] Value& default_value() { return default_; }
  [[nodiscard]] const Value& default_value() const { return default_; }
  [[nodiscard]] const Value& of(const ExecutorId& server) const {
    auto found = servers_.find(server);
    if (found == servers_.end()) found = servers_.find({server.device, 0, server.user});
    return found == servers_.end() ? default_ : found->second;
  }
  // Its first client, or what is set for it: from now on it has a value of its own.
  Value& begin(const ExecutorId& server) { return servers_.try_emplace(server, Value(of(server))).first->second; }
  [[nodiscard]] bool has_begun(const ExecutorId& server) const { return servers_.contains(server); }
  void forget(const ExecutorId& server) { servers_.erase(server); }

  // save_value(StateWriter&, const Value&), restore_value(StateReader&) -> Value.
  template <typename SaveValue>
  void save(StateWriter& state, SaveValue&& save_value) const {
    save_value(state, default_);
    state.number(servers_.size());
    for (const auto& [id, value] : servers_) {
      state.number(id.device);
      state.number(id.ordinal);
      state.number(id.user);
      save_value(state, value);
    }
  }
  template <typename RestoreValue>
  void restore(StateReader& state, RestoreValue&& restore_value) {
    default_ = restore_value(state);
    for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
      ExecutorId id;
      id.device = static_cast<unsigned>(state.number());
      id.ordinal = static_cast<unsigned>(state.number());
      id.user = static_cast<uid_t>(state.number());
      servers_.insert_or_assign(id, restore_value(state));
    }
  }

 private:
  Value default_;
  std::map<ExecutorId, Value> servers_;
};

}  // namespace mpsshim::broker::control
