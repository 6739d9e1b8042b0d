// SPDX-License-Identifier: Apache-2.0
// The commands about one client (`client ...`).
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>
#include <fmt/format.h>

#include "broker/control/base/process_identity.hpp"
#include "broker/control/server/cells.hpp"
#include "broker/control/server/commands.hpp"
#include "broker/printable.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

namespace {

// Of several sessions: one on each device.
struct Pending {
  std::size_t left = 0;
  std::string fault;  // the first
};

}  // namespace

void Commands::set_client(const ParsedCommand& command, const Answer& answer) const {
  std::string fault;
  ClientChange change;
  std::optional<unsigned> of_device;
  if (command.has("--device") && !(of_device = device(command, fault, "--device"))) return answer({false, fault});
  if (command.has("--pinned-memory-limit")) change.memory_limit_bytes = proto::parse_memory_size(command.text("--pinned-memory-limit")).value_or(0);
  if (command.has("--active-thread-percentage")) change.thread_percentage = proto::parse_percentage(command.text("--active-thread-percentage"));
  if (command.has("--client-priority")) change.client_priority = static_cast<std::uint32_t>(command.number("--client-priority"));
  if (!change.memory_limit_bytes && !change.thread_percentage && !change.client_priority) {
    return answer({false, "there is nothing to set: give --active-thread-percentage, --pinned-memory-limit or --client-priority"});
  }
  if (change.thread_percentage) fault = fault_of_percentage(*change.thread_percentage);
  if (change.client_priority && fault.empty()) fault = fault_of_priority(*change.client_priority);
  if (!fault.empty()) return answer({false, fault});

  const std::vector<std::uint64_t> sessions = sessions_of(command, of_device, fault);
  if (sessions.empty()) return answer({false, fault});
  change_sessions(sessions, change, WhoHasEnded::is_a_fault, answer);
}

std::vector<std::uint64_t> Commands::sessions_of(const ParsedCommand& command, std::optional<unsigned> device, std::string& fault) const {
  std::vector<std::uint64_t> sessions;
  for (const auto& [id, session] : manager_.sessions()) {
    const bool is_its = session.client.pid == static_cast<pid_t>(command.number("PID")) && (!device || session.device == *device);
    if (is_its && session.phase != SessionPhase::closing) sessions.push_back(id);
  }
  if (sessions.empty()) fault = fmt::format("there is no client with pid {}{}: see ps", command.text("PID"), device ? " on that device" : "");
  return sessions;
}

void Commands::terminate_anywhere(const ParsedCommand& command, const Answer& answer) const {
  std::string fault;
  const std::vector<std::uint64_t> sessions = sessions_of(command, std::nullopt, fault);
  if (sessions.empty()) return answer({false, fault});
  terminate_sessions(sessions, answer);
}

Commands::Result Commands::list_clients(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const only = server(command, "--server", fault);
  if (!fault.empty()) return {false, fault};
  Table table{{{"pid", "PID", 10}, {"server", "SERVER", 10}, {"device", "DEVICE", 8}, {"namespace", "NAMESPACE", 18}, {"command", "COMMAND"}}, {}};
  for (const auto& [id, session] : manager_.sessions()) {
    if (only != nullptr && session.executor != only) continue;
    table.rows.push_back({positive(session.client.pid),
                          positive(session.executor != nullptr ? session.executor->number().number() : -1),
                          number(session.device),
                          {session.name_space.empty() ? Namespaces::kDefault : session.name_space},
                          {session.client.command}});
  }
  return answer_with(command, "clients", table);
}

// By itself, for scripts.
Commands::Result Commands::get_client(const ParsedCommand& command) const {
  std::string fault;
  const std::string& field = command.text("FIELD");
  Table whose{{{"pid"}, {"device"}}, {}};
  std::vector<Cell> values;
  for (const std::uint64_t id : sessions_of(command, std::nullopt, fault)) {
    const ClientSession& session = *manager_.find(id);
    whose.rows.push_back({positive(session.client.pid), number(session.device)});
    Cell& value = values.emplace_back();
    if (field == "server") value = positive(session.executor != nullptr ? session.executor->number().number() : -1);
    if (field == "pci-id" && manager_.facts() != nullptr) value = known(manager_.facts()->device[session.device].pci_bus_id);
    if (field == "linux-ns") value = known(pid_namespace_of(session.client.pid));
    if (field == "maws-ns") value = {session.name_space.empty() ? Namespaces::kDefault : session.name_space};
    if (field == "cmd") value = {session.client.command};
    if (field == "active-thread-percentage") value = percent(session.thread_percentage.value_or(proto::kWholePercentage));
    if (field == "pinned-memory-limit") value = size_limit(session.memory_limit_bytes.value_or(0));
    if (field == "sm-partition" && session.sm_partition != 0) value = {proto::partition_text(session.sm_partition)};
    if (field == "client-priority") value = number(session.client_priority.value_or(0));
  }
  return fault.empty() ? answer_field(command, "clients", std::move(whose), values) : Result{false, fault};
}

Commands::Result Commands::list_devices(const ParsedCommand& command) const {
  const proto::DriverFacts* const facts = manager_.facts();
  if (facts == nullptr) return {false, "no server is ready: its devices are not known yet"};
  Table table{{{"ordinal", "ORDINAL", 9},
               {"pci_id", "PCI-ID", 14},
               {"uuid", "DEVICE-UUID", 42},
               {"name", "NAME", 34},
               {"total_sms", "TOTAL-SMS", 11},
               {"total_chunks", "TOTAL-CHUNKS"}},
              {}};
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const proto::DeviceFacts& of = facts->device[device];
    const auto all = static_cast<std::uint32_t>(std::max(of.attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT], 0));
    const std::uint32_t unit = proto::partition_unit(of.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
    const unsigned parts_of_driver = manager_.partitions().chunks_of(device);
    const bool can_part = facts->driver_version >= proto::kFirstDriverWithShares;
    table.rows.push_back({number(device),
                          known(of.pci_bus_id),
                          {uuid_text(of)},
                          known(of.name),
                          number(all),
                          number(parts_of_driver != 0 ? parts_of_driver
                                 : can_part           ? all / unit
                                                      : 1)});
  }
  return answer_with(command, "devices", table);
}

Commands::Result Commands::get_server(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return {false, fault};
  const std::string& field = command.text("FIELD");
  Cell value;
  if (field == "pid") value = positive(executor->pid());
  if (field == "uid") value = number(executor->log_user());
  if (field == "device") value = number(executor->device());
  if (field == "status") value = {state_name(executor->state())};
  if (field == "clients") {
    const auto is_its = [executor](const auto& entry) { return entry.second.executor == executor; };
    value = number(static_cast<std::uint64_t>(std::ranges::count_if(manager_.sessions(), is_its)));
  }
  if (field == "active-thread-percentage") value = percent(manager_.thread_percentages().of_server(executor->id()));
  if (field == "pinned-memory-limit") value = size_limit(manager_.memory_limits().of_server(executor->id(), executor->device()));
  Table whose{{{"server"}}, {}};
  whose.rows.push_back({positive(executor->number().number())});
  return answer_field(command, "servers", std::move(whose), {value});
}

// Nothing is set where anything of it cannot be.
Commands::Result Commands::set_server(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return {false, fault};
  const bool has_percentage = command.has("--active-thread-percentage"), has_limit = command.has("--pinned-memory-limit");
  if (!has_percentage && !has_limit) return {false, "there is nothing to set: give --active-thread-percentage or --pinned-memory-limit"};
  const std::uint32_t percentage = has_percentage
                                       ? proto::parse_percentage(command.text("--active-thread-percentage")).value_or(proto::kWholePercentage)
                                       : proto::kWholePercentage;
  if (fault = fault_of_percentage(percentage); !fault.empty()) return {false, fault};
  unsigned of_device = executor->device();  // a server has one
  if (command.has("--device")) {
    const auto named = device(command, fault, "--device");
    if (!named) return {false, fault};
    if (*named != of_device) return {false, fmt::format("server {} is not of that device, but of device {}", command.text("PID"), of_device)};
  }
  const std::uint64_t limit_bytes = has_limit ? proto::parse_memory_size(command.text("--pinned-memory-limit")).value_or(0) : 0;
  if (has_percentage) manager_.thread_percentages().set(executor->id(), percentage);
  if (has_limit) manager_.memory_limits().set(executor->id(), of_device, limit_bytes);
  return {true, ""};
}

void Commands::change_sessions(const std::vector<std::uint64_t>& sessions, const ClientChange& change, WhoHasEnded ended,
                               const Answer& answer) const {
  if (sessions.empty()) return answer({true, ""});
  const auto pending = std::make_shared<Pending>(Pending{sessions.size(), ""});
  for (const std::uint64_t id : sessions) {
    manager_.changes().change(*manager_.find(id), change, [pending, ended, answer](const ChangeResult& result) {
      const bool is_fault = !result.has_client_ended || ended == WhoHasEnded::is_a_fault;
      if (pending->fault.empty() && is_fault) pending->fault = result.fault;
      if (--pending->left == 0) answer({pending->fault.empty(), pending->fault});
    });
  }
}

}  // namespace mpsshim::broker::control
