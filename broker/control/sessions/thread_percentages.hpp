// SPDX-License-Identifier: Apache-2.0
// What part of a device's multiprocessors each client may have, as operators set it: a default for servers to come, and what is set for a server. By
// the manual's rules ("Volta MPS Execution Resource Provisioning"), which are those of ServerSettings; clients that are there keep theirs. Owned by
// SessionManager; the control process's thread.
#pragma once

#include <cstdint>

#include "broker/control/sessions/server_settings.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

class ThreadPercentages {
 public:
  // In hundredths of a percent, 1 to proto::kWholePercentage, as everywhere here.
  void set_default(std::uint32_t percentage) { settings_.default_value() = percentage; }
  [[nodiscard]] std::uint32_t default_value() const { return settings_.default_value(); }

  void set(const ExecutorId& server, std::uint32_t percentage) { settings_.begin(server) = percentage; }
  [[nodiscard]] std::uint32_t of_server(const ExecutorId& server) const { return settings_.of(server); }
  // Its first client.
  void begin(const ExecutorId& server) { settings_.begin(server); }
  [[nodiscard]] bool has_begun(const ExecutorId& server) const { return settings_.has_begun(server); }
  void forget(const ExecutorId& server) { settings_.forget(server); }

  void save(StateWriter& state) const {
    settings_.save(state, [](StateWriter& to, std::uint32_t percentage) { to.number(percentage); });
  }
  void restore(StateReader& state) { settings_.restore(state, restored); }

 private:
  [[nodiscard]] static std::uint32_t restored(StateReader& state) {
    const std::uint64_t percentage = state.number();
    if (percentage == 0 || percentage > proto::kWholePercentage) state.fail();
    return static_cast<std::uint32_t>(percentage);
  }

  ServerSettings<std::uint32_t> settings_{proto::kWholePercentage};
};

}  // namespace mpsshim::broker::control
