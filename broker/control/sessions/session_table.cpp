// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_table.hpp"

#include "broker/control/executors/managed_executor.hpp"

namespace mpsshim::broker::control {

ClientSession& SessionTable::add(const ClientIdentity& client, unsigned device) {
  ClientSession& session = adopt(next_id_++);
  session.client = client;
  session.device = device;
  return session;
}

ClientSession& SessionTable::adopt(std::uint64_t id) {
  ClientSession& session = sessions_[id];
  session.id = id;
  session.counts = counts_.take(id);
  return session;
}

ClientSession* SessionTable::find(std::uint64_t id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

const ClientSession* SessionTable::find(std::uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

bool SessionTable::is_of(const ClientSession& session, House house) const {
  if (!house) return true;
  return *house == (session.executor != nullptr ? session.executor->user() : limits_.house_of(session.client.uid));
}

std::vector<std::shared_ptr<const ClientProgram>> SessionTable::programs_of(std::span<const std::uint64_t> ids) const {
  std::vector<std::shared_ptr<const ClientProgram>> programs;
  for (const std::uint64_t id : ids) {
    if (const ClientSession* session = find(id)) programs.push_back(session->client.program);
  }
  return programs;
}

}  // namespace mpsshim::broker::control
