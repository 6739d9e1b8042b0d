// SPDX-License-Identifier: Apache-2.0
// What sessions have left behind in executors they were moved away from: mappings that can be taken down only in a quiet window, which such an
// executor may not have for a long time. Until then the session must not come back there, and its leases, should it end meanwhile, must not be
// given to anybody else: their addresses are still taken there.
// Owned by SessionRanges; the control process's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proto/handshake.hpp"

namespace mpsshim::broker::control {

class ManagedExecutor;

class Remnants {
 public:
  struct Leases {
    proto::Lease device;
    proto::Lease pinned;
  };

  void add(const ManagedExecutor& where, std::uint64_t session) { entries_.emplace_back(&where, session); }
  [[nodiscard]] bool contains(const ManagedExecutor& where, std::uint64_t session) const {
    return std::ranges::find(entries_, Entry(&where, session)) != entries_.end();
  }
  // The session has ended. False if nothing is left of it anywhere: its leases are free.
  [[nodiscard]] bool keep(std::uint64_t session, const Leases& leases) {
    if (!is_anywhere(session)) return false;
    kept_.emplace(session, leases);
    return true;
  }
  // Both return the leases that are free now. remove() is without effect where there is no such remnant.
  [[nodiscard]] std::vector<Leases> remove(const ManagedExecutor& where, std::uint64_t session) {
    std::erase(entries_, Entry(&where, session));
    return take_free();
  }
  [[nodiscard]] std::vector<Leases> remove_all(const ManagedExecutor& where) {
    std::erase_if(entries_, [&](const Entry& entry) { return entry.first == &where; });
    return take_free();
  }

 private:
  using Entry = std::pair<const ManagedExecutor*, std::uint64_t>;

  [[nodiscard]] bool is_anywhere(std::uint64_t session) const {
    return std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.second == session; });
  }
  [[nodiscard]] std::vector<Leases> take_free() {
    std::vector<Leases> free;
    std::erase_if(kept_, [&](const auto& entry) {
      if (is_anywhere(entry.first)) return false;
      free.push_back(entry.second);
      return true;
    });
    return free;
  }

  std::vector<Entry> entries_;
  std::multimap<std::uint64_t, Leases> kept_;  // of sessions that have ended
};

}  // namespace mpsshim::broker::control
