// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/client_facts.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "broker/control/base/process_identity.hpp"
#include "broker/control/server/cells.hpp"
#include "broker/control/server/commands.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

namespace {

Cell name_space(pid_t pid) {
  const std::string name = pid_namespace_of(pid);
  return name == "-" ? Cell{nullptr} : Cell{name};
}

Cell age(std::chrono::milliseconds since) { return {static_cast<std::uint64_t>(since.count()), age_text(since)}; }

using Count = std::uint64_t SessionCountsStore::Values::*;

Cell counted(const ClientFacts& client, Count count) { return client.counts ? number(client.counts.value().*count) : Cell{nullptr}; }

Cell counted_time(const ClientFacts& client, Count nanoseconds) {
  if (!client.counts) return {nullptr};
  const std::uint64_t passed_ns = client.counts.value().*nanoseconds;
  return {passed_ns / 1'000, fmt::format("{:.1f}s", static_cast<double>(passed_ns) / 1e9)};
}

// Nothing before it was opened, and of one in a static partition. A library of an older release may have asked for 0, which is all.
Cell percentage(const ClientSession& session) {
  if (!session.thread_percentage || session.sm_partition != 0) return {nullptr};
  return percent(*session.thread_percentage != 0 ? *session.thread_percentage : proto::kWholePercentage);
}

std::vector<Column> columns(bool is_long) {
  const auto if_long = [is_long](const char* heading) { return is_long ? heading : ""; };
  return {{"pid", "PID", 10},
          {"session", "ID", 7},
          {"client", if_long("CLIENT"), 8},
          {"server", "SERVER", 10},
          {"server_pid"},
          {"device"},
          {"uuid", "DEVICE", 24},
          {"pid_namespace", "NAMESPACE", 13},
          {"state", if_long("STATE"), 13},
          {"age_ms", if_long("AGE"), 10},
          {"memory_bytes", if_long("MEMORY"), 9},
          {"memory_limit_bytes"},
          {"active_thread_percentage", if_long("SM%"), 7},
          {"sm_partition", if_long("PARTITION"), 11},
          {"client_priority", if_long("PRIORITY"), 10},
          {"group", if_long("GROUP"), 12},
          {"gpu_time_us", if_long("GPU-TIME"), 10},
          {"launches", if_long("LAUNCHES"), 11},
          {"waits", if_long("WAITS"), 9},
          {"wait_time_us", if_long("WAITED"), 9},
          {"in_flight", if_long("IN-FLIGHT"), 11},
          {"uid", if_long("USER"), 9},
          {"pod"},
          {"container"},
          {"command", "COMMAND"}};
}

}  // namespace

std::vector<ClientFacts> client_facts(const SessionManager& manager, const ManagedExecutor* only) {
  std::vector<ClientFacts> clients;
  std::map<const ManagedExecutor*, std::map<std::uint64_t, std::uint64_t>> in_flight;  // a table is read once
  std::map<std::pair<pid_t, uid_t>, std::uint64_t> processes;
  const auto now = EventLoop::Clock::now();
  for (const auto& [id, session] : manager.sessions()) {
    const bool is_known = session.client.pid > 0;
    const std::uint64_t first = is_known ? processes.try_emplace({session.client.pid, session.client.uid}, id).first->second : id;
    if (only != nullptr && only != session.executor) continue;
    ClientFacts& client = clients.emplace_back();
    client.session = &session;
    client.client = first;
    client.age = std::chrono::duration_cast<std::chrono::milliseconds>(now - session.began_at);
    client.counts = session.counts.read();
    if (session.executor == nullptr) continue;
    const auto [table, is_new] = in_flight.try_emplace(session.executor);
    if (is_new) table->second = session.executor->in_flight();
    if (const auto found = table->second.find(id); found != table->second.end()) client.in_flight = found->second;
  }
  std::ranges::stable_sort(clients, {}, &ClientFacts::client);
  return clients;
}

Commands::Result Commands::ps(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const only = server(command, "-p", fault);
  if (!fault.empty()) return {false, fault};
  Table table{columns(command.has("-l")), {}};
  for (const ClientFacts& facts : client_facts(manager_, only)) {
    const ClientSession& session = *facts.session;
    const ClientIdentity& client = session.client;
    const ManagedExecutor* const executor = session.executor;
    table.rows.push_back({positive(client.pid),
                          number(session.id),
                          number(facts.client),
                          positive(executor != nullptr ? executor->number().number() : -1),
                          positive(executor != nullptr ? executor->pid() : -1),
                          number(session.device),
                          uuid(manager_.facts(), session.device),
                          name_space(client.pid),
                          {phase_name(session.phase)},
                          age(facts.age),
                          mib(session.chunks.total_bytes()),
                          limit(session.memory_limit_bytes.value_or(0)),
                          percentage(session),
                          session.sm_partition != 0 ? Cell{proto::partition_text(session.sm_partition)} : Cell{nullptr},
                          session.client_priority ? number(*session.client_priority) : Cell{nullptr},
                          known(session.name_space),
                          counted_time(facts, &SessionCountsStore::Values::gpu_ns),
                          counted(facts, &SessionCountsStore::Values::launches),
                          counted(facts, &SessionCountsStore::Values::waits),
                          counted_time(facts, &SessionCountsStore::Values::wait_ns),
                          number(facts.in_flight),
                          number(client.uid),
                          known(client.pod.pod),
                          known(client.pod.container),
                          {client.command}});
  }
  return answer_with(command, "clients", table);
}

}  // namespace mpsshim::broker::control
