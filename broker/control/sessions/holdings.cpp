// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/holdings.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "broker/control/base/complaints.hpp"

namespace mpsshim::broker::control {

namespace {

// Limits of a user: 0 is none.
template <typename Number>
bool is_reached(Number held, Number limit) {
  return limit != 0 && held >= limit;
}

}  // namespace

void ClientCount::add(const ClientIdentity& client, unsigned device) {
  if (client.pid > 0) {
    ++sessions_[{client.pid, client.uid}][device];
  } else {
    ++unknown_;
  }
}

std::size_t ClientCount::number() const {
  std::size_t clients = unknown_;
  for (const auto& [process, on_device] : sessions_) {
    clients += std::ranges::max_element(on_device, {}, [](const auto& entry) { return entry.second; })->second;
  }
  return clients;
}

Holding Holdings::of(const ClientSession& session) const {
  const ImageStore::Holding images = images_.held_by(session.id);
  return {.sessions = session.phase == SessionPhase::closing ? 0u : 1u,
          .descriptors = session.segments.all().size() + images.count,
          .host_bytes = session.segments.total_bytes() + images.bytes};
}

std::map<uid_t, Holding> Holdings::by_user(const DeviceQuota& device_memory) const {
  std::map<uid_t, Holding> users;
  std::map<uid_t, ClientCount> clients;
  for (const auto& [id, session] : sessions_.all()) {
    const Holding one = of(session);
    Holding& all = users[session.client.uid];
    all.sessions += one.sessions;
    all.descriptors += one.descriptors;
    all.host_bytes += one.host_bytes;
    if (one.sessions != 0) clients[session.client.uid].add(session.client, session.device);
  }
  for (auto& [uid, all] : users) {
    all.clients = clients[uid].number();
    all.device_bytes = device_memory.held(uid);
  }
  return users;
}

bool Holdings::may_open(const ClientIdentity& client, unsigned device, std::string& why) const {
  // Sessions whose client is gone are on their way out and cost nobody a place; but not without end.
  ClientCount all, living, of_user;
  std::size_t sessions = 0, of_process = 0;
  for (const auto& [id, session] : sessions_.all()) {
    const bool lives = session.phase != SessionPhase::closing;
    sessions += lives ? 1 : 0;
    all.add(session.client, session.device);
    if (lives) living.add(session.client, session.device);
    if (lives && session.client.uid == client.uid) of_user.add(session.client, session.device);
    // 0 or less: of a pid namespace we do not see, where processes cannot be told apart.
    of_process += client.pid > 0 && session.client.pid == client.pid && session.device == device ? 1 : 0;
  }
  const std::size_t clients = living.number(), clients_of_user = of_user.number();
  for (ClientCount* const count : {&all, &living, &of_user}) count->add(client, device);  // as it would be
  const std::size_t most_of_user = limits_.resources.user.sessions;
  if (living.number() > limits_.max_clients || all.number() > 2 * limits_.max_clients) {
    why = fmt::format("there are {} clients already, which is the limit (--max-clients)", clients);
  } else if (sessions >= kMaxLeases) {
    why = fmt::format("{} clients have {} sessions, one on each of their devices, and there are no more ranges of addresses", clients, sessions);
  } else if (most_of_user != 0 && of_user.number() > most_of_user) {
    why = fmt::format("user {} has {} clients already, which is the limit for one user (--user-sessions)", client.uid, clients_of_user);
  } else if (of_process >= limits_.resources.process_sessions) {
    why = fmt::format("it has {} sessions on device {} already, and a process needs one", of_process, device);
  } else {
    return true;
  }
  return false;
}

bool Holdings::may_hold(const ClientSession& session, std::uint64_t more_bytes, std::string& why) const {
  const ResourceLimits& limits = limits_.resources;
  const Holding own = of(session);
  Holding user;
  std::size_t all_descriptors = images_.count();
  std::uint64_t all_bytes = images_.total_bytes();
  for (const auto& [id, other] : sessions_.all()) {
    all_descriptors += other.segments.all().size();
    all_bytes += other.segments.total_bytes();
    if (other.client.uid != session.client.uid) continue;
    const Holding one = of(other);
    user.descriptors += one.descriptors;
    user.host_bytes += one.host_bytes;
  }
  const auto exceeds = [more_bytes](std::uint64_t held, std::uint64_t limit) { return held > limit || more_bytes > limit - held; };
  const uid_t uid = session.client.uid;
  if (own.descriptors >= limits.client_descriptors) {
    why = fmt::format("its segments and images take {} descriptors, which is the limit for one client (ulimit -n)", own.descriptors);
  } else if (is_reached(user.descriptors, limits.user.descriptors)) {
    why = fmt::format("segments and images of user {} take {} descriptors, which is the limit for one user (ulimit -n)", uid, user.descriptors);
  } else if (all_descriptors >= limits.all_descriptors) {
    why = fmt::format("all clients' segments and images take {} descriptors, which is the limit (ulimit -n)", all_descriptors);
  } else if (exceeds(own.host_bytes, limits.client_host_bytes)) {
    why = fmt::format("it has {} MiB of host memory, and a client may have {} MiB (--client-host-mib)", own.host_bytes >> 20,
                      limits.client_host_bytes >> 20);
  } else if (limits.user.host_bytes != 0 && exceeds(user.host_bytes, limits.user.host_bytes)) {
    why = fmt::format("clients of user {} have {} MiB of host memory, and may have {} MiB (--user-host-mib)", uid, user.host_bytes >> 20,
                      limits.user.host_bytes >> 20);
  } else if (exceeds(all_bytes, limits.all_host_bytes)) {
    why = fmt::format("all clients have {} MiB of host memory, and may have {} MiB (--host-mib)", all_bytes >> 20, limits.all_host_bytes >> 20);
  } else {
    return true;
  }
  return false;
}

}  // namespace mpsshim::broker::control
