// SPDX-License-Identifier: Apache-2.0
// The commands that ask. Each gathers what it answers once, as cells; all forms of the answer are made of those.
#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <cuda.h>
#include <fmt/format.h>

#include "broker/commands/document.hpp"
#include "broker/commands/table.hpp"
#include "broker/control/server/cells.hpp"
#include "broker/control/server/commands.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

std::string of_limit(const std::string& held, std::uint64_t limit) { return fmt::format("{}/{}", held, limit); }

// Nothing where the driver does not tell.
Cell attribute(const proto::DeviceFacts& device, CUdevice_attribute name) {
  return device.attribute_status[name] == 0 ? Cell{std::int64_t{device.attribute[name]}} : Cell{nullptr};
}

Cell text_of(const char* begin, std::size_t most) { return {std::string(begin, strnlen(begin, most))}; }

Commands::Result finished(JsonWriter& json) { return {true, end_document(json)}; }

std::string lines_of(const std::vector<pid_t>& pids) {
  std::string text;
  for (const pid_t pid : pids) text += fmt::format("{}\n", pid);
  return text;
}

void write_pids(JsonWriter& json, std::string_view key, const std::vector<pid_t>& pids) {
  json.key(key).begin_array();
  for (const pid_t pid : pids) json.value(pid);
  json.end_array();
}

std::vector<pid_t> clients_of(const SessionManager& manager, const ManagedExecutor* server, std::optional<unsigned> device) {
  std::vector<pid_t> pids;
  for (const auto& [id, session] : manager.sessions()) {
    const bool is_its = (server == nullptr || session.executor == server) && (!device || session.device == *device);
    if (is_its && session.phase != SessionPhase::closing) pids.push_back(session.client.pid);
  }
  return pids;
}

}  // namespace

Commands::Result Commands::ask(const ParsedCommand& command) const {
  const std::string_view name = command.name();
  if (name == "ps") return ps(command);
  if (name == "servers" || name == "server list") return servers(command);
  if (name == "users") return users(command);
  if (name == "device_query") return device_query(command);
  if (name == "get_server_list") return get_server_list(command);
  if (name == "get_server_status") return get_server_status(command);
  if (name == "get_client_list") return get_client_list(command);
  if (name == "get_device_client_list") return get_device_client_list(command);
  if (name.ends_with("device_pinned_mem_limit")) return get_memory_limit(command);
  if (name.ends_with("active_thread_percentage")) return get_thread_percentage(command);
  if (name == "get_default_client_priority") return get_client_priority(command);
  if (name == "server get") return get_server(command);
  if (name == "namespace list") return list_namespaces(command);
  if (name == "namespace get") return get_namespace(command);
  if (name == "client list") return list_clients(command);
  if (name == "client get") return get_client(command);
  if (name == "device list") return list_devices(command);
  if (name == "lspart") return list_chunks(command);
  if (name == "sm-partition list") return list_partitions(command);
  return {false, fmt::format("{} is not answered", name)};  // of the table and not here: a mistake of ours, which a test looks for
}

Commands::Result Commands::answer_with(const ParsedCommand& command, std::string_view key, const Table& table) {
  switch (command.format()) {
    case AnswerFormat::text: return {true, columns_of(table)};
    case AnswerFormat::text_without_header: return {true, columns_of(table, false)};
    case AnswerFormat::csv: return {true, comma_separated(table, true)};
    case AnswerFormat::csv_without_header: return {true, comma_separated(table, false)};
    case AnswerFormat::json: break;
  }
  JsonWriter json = begin_document(command);
  write_rows(json.key(key), table);
  return finished(json);
}

Commands::Result Commands::answer_field(const ParsedCommand& command, std::string_view key, Table whose, const std::vector<Cell>& values) {
  std::string name = command.text("FIELD");
  if (name.starts_with("pinned-memory-")) name += "-bytes";
  std::ranges::replace(name, '-', '_');
  const auto has = [&name](const Column& column) { return column.key == name; };
  if (const auto column = std::ranges::find_if(whose.columns, has); column != whose.columns.end()) {
    column->heading = "FIELD";
  } else {
    whose.columns.push_back({name, "FIELD"});
    for (std::size_t i = 0; i < values.size(); ++i) whose.rows[i].push_back(values[i]);
  }
  const bool is_text = command.format() == AnswerFormat::text || command.format() == AnswerFormat::text_without_header;
  return is_text ? Result{true, columns_of(whose, false)} : answer_with(command, key, whose);
}

Commands::Result Commands::in_form(const ParsedCommand& command, const Result& result) {
  if (!result.ok) return result;
  JsonWriter json = begin_document(command);
  if (!result.text.empty()) json.member("answer", std::string_view(result.text).substr(0, result.text.find('\n')));
  return finished(json);
}

Commands::Result Commands::servers(const ParsedCommand& command) const {
  Table table{{{"server", "SERVER", 10},
               {"pid", "PID", 10},
               {"device"},
               {"uuid", "DEVICE", 24},
               {"uid", "USER", 11},
               {"status", "STATUS", 14},
               {"clients", "CLIENTS", 9},
               {"lives", "LIVES", 7},
               {"driver", "DRIVER"},
               {"has_begun"}},
              {}};
  for (const auto& [name, executor] : manager_.executors()) {
    const auto is_its = [server = executor.get()](const auto& entry) { return entry.second.executor == server; };
    const auto clients = std::ranges::count_if(manager_.sessions(), is_its);
    table.rows.push_back({positive(executor->number().number()),
                          positive(executor->pid()),
                          number(executor->device()),
                          uuid(manager_.facts(), executor->device()),
                          number(executor->log_user()),
                          {state_name(executor->state())},
                          number(static_cast<std::uint64_t>(clients)),
                          number(executor->epoch()),
                          {executor->driver()},
                          number(manager_.thread_percentages().has_begun(executor->id()) ? 1 : 0)});
  }
  return answer_with(command, "servers", table);
}

Commands::Result Commands::users(const ParsedCommand& command) const {
  const SessionLimits& limits = manager_.limits();
  const UserLimits& user = limits.resources.user;
  const std::uint64_t most_sessions = user.sessions != 0 ? user.sessions : limits.max_clients;
  const std::uint64_t most_host = user.host_bytes != 0 ? user.host_bytes : limits.resources.all_host_bytes;
  Table table{{{"uid", "USER", 11},
               {"sessions", "SESSIONS", 15},
               {"sessions_limit"},
               {"servers", "SERVERS", 10},
               {"servers_limit"},
               {"device_bytes", "DEVICE", 17},
               {"device_limit_bytes"},
               {"host_bytes", "HOST"},
               {"host_limit_bytes"}},
              {}};
  for (const auto& [uid, held] : manager_.holdings()) {
    std::set<const ManagedExecutor*> servers;
    for (const auto& [id, session] : manager_.sessions()) {
      if (session.client.uid == uid && session.executor != nullptr) servers.insert(session.executor);
    }
    std::string device;  // "512"; of two devices "512+0"
    for (const std::uint64_t bytes : held.device_bytes) device += fmt::format("{}{}", device.empty() ? "" : "+", bytes >> 20);
    if (device.empty()) device = "0";
    if (user.device_bytes != 0) device = of_limit(device, user.device_bytes >> 20);
    table.rows.push_back({number(uid),
                          {std::uint64_t{held.clients}, of_limit(std::to_string(held.clients), most_sessions)},
                          number(most_sessions),
                          {std::uint64_t{servers.size()}, of_limit(std::to_string(servers.size()), limits.pool.executors)},
                          number(limits.pool.executors),
                          {held.device_bytes, device},
                          limit(user.device_bytes),
                          {held.host_bytes, of_limit(std::to_string(held.host_bytes >> 20), most_host >> 20)},
                          number(most_host)});
  }
  return answer_with(command, "users", table);
}

Commands::Result Commands::device_query(const ParsedCommand& command) const {
  const proto::DriverFacts* const facts = manager_.facts();
  if (facts == nullptr) return {false, "no server is ready: its devices are not known yet"};
  Table table{{{"device", "DEVICE", 8},
               {"pci_bus_id", "PCI", 14},
               {"uuid", "UUID", 42},
               {"memory_bytes", "MEMORY", 9},
               {"multiprocessors", "SMS", 6},
               {"compute_capability", "CAPABILITY", 12},
               {"name", "NAME"}},
              {}};
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const proto::DeviceFacts& of = facts->device[device];
    const Cell major = attribute(of, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const Cell minor = attribute(of, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    Cell capability{nullptr};
    if (const auto* first = std::get_if<std::int64_t>(&major.value), *second = std::get_if<std::int64_t>(&minor.value);
        first != nullptr && second != nullptr) {
      capability = {fmt::format("{}.{}", *first, *second)};
    }
    table.rows.push_back({number(device),
                          text_of(of.pci_bus_id, sizeof of.pci_bus_id),
                          {uuid_text(of)},
                          mib(of.total_memory_bytes),
                          attribute(of, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                          capability,
                          text_of(of.name, sizeof of.name)});
  }
  return answer_with(command, "devices", table);
}

Commands::Result Commands::get_server_list(const ParsedCommand& command) const {
  std::vector<pid_t> numbers;
  for (const auto& [name, executor] : manager_.executors()) {
    if (executor->number().number() > 0 && !executor->is_quitting()) numbers.push_back(executor->number().number());
  }
  if (command.format() == AnswerFormat::text) return {true, lines_of(numbers)};
  JsonWriter json = begin_document(command);
  write_pids(json, "servers", numbers);
  return finished(json);
}

Commands::Result Commands::get_server_status(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (executor == nullptr) return {false, fault};
  const char* const status = state_name(executor->state());
  if (command.format() == AnswerFormat::text) return {true, fmt::format("{}\n", status)};
  JsonWriter json = begin_document(command);
  json.member("server", executor->number().number()).member("status", status);
  return finished(json);
}

Commands::Result Commands::get_client_list(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (executor == nullptr) return {false, fault};
  const std::vector<pid_t> clients = clients_of(manager_, executor, std::nullopt);
  if (command.format() == AnswerFormat::text) return {true, lines_of(clients)};
  JsonWriter json = begin_document(command);
  write_pids(json.member("server", executor->number().number()), "clients", clients);
  return finished(json);
}

Commands::Result Commands::get_device_client_list(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const only = server(command, "PID", fault);
  if (!fault.empty()) return {false, fault};
  const proto::DriverFacts* const facts = manager_.facts();
  if (facts == nullptr) return {false, "no server is ready: its devices are not known yet"};
  std::string text;
  JsonWriter json = begin_document(command);
  json.key("devices").begin_array();
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const std::vector<pid_t> clients = clients_of(manager_, only, device);
    text += *uuid(facts, device).shown + '\n' + lines_of(clients);
    json.begin_object().member("device", device).member("uuid", uuid_text(facts->device[device]));
    write_pids(json, "clients", clients);
    json.end_object();
  }
  json.end_array();
  return command.format() == AnswerFormat::text ? Result{true, text} : finished(json);
}

Commands::Result Commands::get_memory_limit(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return {false, fault};
  const auto of_device = device(command, fault);
  if (!of_device) return {false, fault};
  const MemoryLimits& limits = manager_.memory_limits();
  const std::uint64_t bytes = executor == nullptr ? limits.default_of(*of_device) : limits.of_server(executor->id(), *of_device);
  if (command.format() == AnswerFormat::text) return {true, size_text(bytes) + '\n'};
  JsonWriter json = begin_document(command);
  if (executor != nullptr) json.member("server", executor->number().number());
  json.member("device", *of_device).member("uuid", uuid_text(manager_.facts()->device[*of_device]));
  json.member("limit_bytes", bytes == 0 ? std::nullopt : std::optional(bytes));
  return finished(json);
}

Commands::Result Commands::get_client_priority(const ParsedCommand& command) const {
  const std::uint32_t priority = manager_.default_client_priority();
  if (command.format() == AnswerFormat::text) return {true, fmt::format("{}\n", priority)};
  JsonWriter json = begin_document(command);
  json.member("priority", priority);
  return finished(json);
}

Commands::Result Commands::get_thread_percentage(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return {false, fault};
  const ThreadPercentages& percentages = manager_.thread_percentages();
  const std::string text = proto::percentage_text(executor == nullptr ? percentages.default_value() : percentages.of_server(executor->id()));
  if (command.format() == AnswerFormat::text) return {true, text + '\n'};
  JsonWriter json = begin_document(command);
  if (executor != nullptr) json.member("server", executor->number().number());
  json.key("percentage").number(text);
  return finished(json);
}

}  // namespace mpsshim::broker::control
