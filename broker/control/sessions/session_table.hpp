// SPDX-License-Identifier: Apache-2.0
// All sessions, by number. A number is never given twice, also not by the program that takes over from this one.
// Owned by SessionManager; the control process's thread. Sessions stay where they are until they are erased.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/control/sessions/client_session.hpp"
#include "broker/control/sessions/session_limits.hpp"

namespace mpsshim::broker::control {

class SessionTable {
 public:
  using Map = std::map<std::uint64_t, ClientSession>;
  explicit SessionTable(const SessionLimits& limits) : limits_(limits) {}
  SessionTable(const SessionTable&) = delete;

  [[nodiscard]] ClientSession& add(const ClientIdentity& client, unsigned device);
  [[nodiscard]] ClientSession& adopt(std::uint64_t id);  // that has been handed over
  void erase(std::uint64_t id) { sessions_.erase(id); }

  [[nodiscard]] Map& all() { return sessions_; }
  [[nodiscard]] const Map& all() const { return sessions_; }
  [[nodiscard]] std::size_t size() const { return sessions_.size(); }
  // nullptr once the session has ended.
  [[nodiscard]] ClientSession* find(std::uint64_t id);
  [[nodiscard]] const ClientSession* find(std::uint64_t id) const;
  [[nodiscard]] ClientSession& at(std::uint64_t id) { return sessions_.at(id); }

  [[nodiscard]] bool is_of(const ClientSession& session, House house) const;
  // What they run, of those that are still there.
  [[nodiscard]] std::vector<std::shared_ptr<const ClientProgram>> programs_of(std::span<const std::uint64_t> ids) const;

  [[nodiscard]] const SessionCountsStore& counts() const { return counts_; }

  // For a hand-over.
  [[nodiscard]] std::uint64_t next_id() const { return next_id_; }
  void go_on_from(std::uint64_t next_id) { next_id_ = next_id; }

 private:
  const SessionLimits& limits_;
  std::uint64_t next_id_ = 1;
  SessionCountsStore counts_;  // before those that have rows of it
  Map sessions_;
};

}  // namespace mpsshim::broker::control
