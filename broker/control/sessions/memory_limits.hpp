// SPDX-License-Identifier: Apache-2.0
// How much device memory each client may have, as operators set it: a default for servers to come, and what is set for a server. By the
// manual's rules ("Volta MPS Device Memory Limit"), which are those of ServerSettings; clients that are there keep theirs; a client can only ask for
// less, and gets no more by being placed in a further server.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>

#include "broker/control/sessions/server_settings.hpp"

namespace mpsshim::broker::control {

class MemoryLimits {
 public:
  using ByDevice = std::map<unsigned, std::uint64_t>;  // bytes; not there: no limit

  void set_default(unsigned device, std::uint64_t bytes) { settings_.default_value()[device] = bytes; }
  [[nodiscard]] std::uint64_t default_of(unsigned device) const { return of(settings_.default_value(), device); }

  void set(const ExecutorId& server, unsigned device, std::uint64_t bytes) { settings_.begin(server)[device] = bytes; }
  [[nodiscard]] std::uint64_t of_server(const ExecutorId& server, unsigned device) const { return of(settings_.of(server), device); }
  // Its first client.
  void begin(const ExecutorId& server) { settings_.begin(server); }
  void forget(const ExecutorId& server) { settings_.forget(server); }

  void save(StateWriter& state) const { settings_.save(state, saved); }
  void restore(StateReader& state) { settings_.restore(state, restored); }

 private:
  [[nodiscard]] static std::uint64_t of(const ByDevice& limits, unsigned device) {
    const auto found = limits.find(device);
    return found == limits.end() ? 0 : found->second;
  }
  static void saved(StateWriter& state, const ByDevice& limits) {
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

  ServerSettings<ByDevice> settings_{ByDevice()};
};

}  // namespace mpsshim::broker::control
