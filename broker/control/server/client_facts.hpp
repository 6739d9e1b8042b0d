// SPDX-License-Identifier: Apache-2.0
// What there is to see of each client (docs/seeing.md), gathered in one pass for whoever shows it: `ps`, and the figures for Prometheus. All of it is
// in the control process's own memory or in what executors share with it; nobody is asked and nothing is waited for.
// The control process's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/control/manager/session_manager.hpp"

namespace mpsshim::broker::control {

struct ClientFacts {
  const ClientSession* session = nullptr;
  std::uint64_t client = 0;  // the number of its process's first session: those of one process, one a device, have the same
  std::chrono::milliseconds age{};
  std::optional<SessionCountsStore::Values> counts;  // nothing: they are not kept
  std::uint64_t in_flight = 0;                       // operations that the driver has and that have not ended
};

// Sessions of one process one behind the other, else in the order of their numbers. `only`: of that server alone, unless it is nullptr.
[[nodiscard]] std::vector<ClientFacts> client_facts(const SessionManager& manager, const ManagedExecutor* only);

}  // namespace mpsshim::broker::control
