// SPDX-License-Identifier: Apache-2.0
// The commands about groups of clients (`namespace ...`).
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "broker/control/server/cells.hpp"
#include "broker/control/server/commands.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

std::vector<std::uint64_t> members_of(const SessionManager& manager, const Namespace* of) {
  std::vector<std::uint64_t> found;
  for (const auto& [id, session] : manager.sessions()) {
    if (manager.namespace_of(session) == of) found.push_back(id);
  }
  return found;
}

std::vector<std::uint64_t> others_than(const SessionManager& manager, const Namespace* of) {
  std::vector<std::uint64_t> found;
  for (const auto& [id, session] : manager.sessions()) {
    if (manager.namespace_of(session) != of) found.push_back(id);
  }
  return found;
}

// What cannot be kept is not promised. "": it can.
std::string fault_of_request(SessionManager& manager, const Namespace& of, std::uint64_t request_bytes, std::uint64_t limit_bytes) {
  if (limit_bytes != 0 && request_bytes > limit_bytes)
    return fmt::format("{} MiB cannot be kept for clients that may have {} MiB together", request_bytes >> 20, limit_bytes >> 20);
  const proto::DriverFacts* const facts = manager.facts();
  if (request_bytes == 0 || facts == nullptr) return "";
  const std::uint64_t kept = manager.namespaces().requested_besides(&of);
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const std::uint64_t total = facts->device[device].total_memory_bytes;
    if (request_bytes > total - std::min(total, kept))
      return fmt::format("{} MiB cannot be kept: device {} has {} MiB, and {} MiB are kept for other namespaces", request_bytes >> 20, device,
                         total >> 20, kept >> 20);
  }
  return "";
}

// Of what is kept of multiprocessors.
Cell not_lent_on(SessionManager& manager, const Namespace& of) {
  if (of.thread_percentage_request == 0) return {nullptr};
  const std::vector<std::uint64_t> devices = manager.requests().not_lent_on(of.id);
  return {devices, devices.empty() ? "nowhere" : fmt::format("{}", fmt::join(devices, "+"))};
}

std::string no_such(const std::string& name) { return fmt::format("there is no namespace {}: see namespace list", name); }

}  // namespace

Namespaces::Key Commands::namespace_key(const ParsedCommand& command) const {
  const uid_t uid = command.has("--uid") ? static_cast<uid_t>(command.number("--uid")) : geteuid();
  return {manager_.limits().house_of(uid), command.text("NAME")};
}

Commands::Result Commands::list_namespaces(const ParsedCommand& command) const {
  Table table{{{"name", "NAME", 18},
               {"uid", "USER", 9},
               {"clients", "CLIENTS", 9},
               {"device_bytes", "MEMORY", 12},
               {"pinned_memory_request_bytes", "KEPT", 9},
               {"pinned_memory_limit_bytes", "LIMIT", 9},
               {"active_thread_percentage", "SM%", 7},
               {"active_thread_percentage_request", "SM%-KEPT", 10},
               {"client_priority", "PRIORITY", 10},
               {"own_executor", "EXECUTOR", 10},
               {"multiprocessors_not_lent_on", "SM%-NOT-LENT"}},
              {}};
  const proto::DriverFacts* const facts = manager_.facts();
  for (const auto& [key, of] : manager_.namespaces().all()) {
    std::vector<std::uint64_t> held;  // by device
    std::string shown;
    for (unsigned device = 0; device < (facts != nullptr ? std::min(facts->device_count, proto::kMaxDevices) : 1); ++device) {
      held.push_back(manager_.namespace_held(of, device));
      shown += fmt::format("{}{}", device == 0 ? "" : "+", held.back() >> 20);
    }
    table.rows.push_back({{key.second},
                          number(key.first == kHome ? geteuid() : key.first),
                          number(members_of(manager_, &of).size()),
                          {held, shown},
                          of.memory_request_bytes != 0 ? mib(of.memory_request_bytes) : Cell{nullptr},
                          of.memory_limit_bytes != 0 ? mib(of.memory_limit_bytes) : Cell{nullptr},
                          percent(of.thread_percentage != 0 ? of.thread_percentage : proto::kWholePercentage),
                          of.thread_percentage_request != 0 ? percent(of.thread_percentage_request) : Cell{nullptr},
                          of.client_priority ? number(*of.client_priority) : Cell{nullptr},
                          {std::uint64_t{of.has_own_executor ? 1u : 0u}, of.has_own_executor ? "own" : "shared"},
                          not_lent_on(manager_, of)});
  }
  return answer_with(command, "namespaces", table);
}

Commands::Result Commands::get_namespace(const ParsedCommand& command) const {
  const Namespaces::Key key = namespace_key(command);
  const Namespace* const found = manager_.namespaces().find(key);
  if (found == nullptr) return {false, no_such(key.second)};
  const std::string& field = command.text("FIELD");
  Cell value;
  if (field == "clients") value = number(members_of(manager_, found).size());
  if (field == "active-thread-percentage") value = percent(found->thread_percentage != 0 ? found->thread_percentage : proto::kWholePercentage);
  if (field == "active-thread-percentage-request") {
    value = found->thread_percentage_request != 0 ? percent(found->thread_percentage_request) : Cell{nullptr, "none"};
  }
  if (field == "pinned-memory-limit") value = size_limit(found->memory_limit_bytes);
  if (field == "pinned-memory-request") value = found->memory_request_bytes != 0 ? size_limit(found->memory_request_bytes) : Cell{nullptr, "none"};
  if (field == "client-priority" && found->client_priority) value = number(*found->client_priority);
  if (field == "own-executor") value = {std::uint64_t{found->has_own_executor ? 1U : 0U}, found->has_own_executor ? "yes" : "no"};
  Table whose{{{"name"}, {"uid"}}, {}};
  whose.rows.push_back({{key.second}, number(key.first == kHome ? geteuid() : key.first)});
  return answer_field(command, "namespaces", std::move(whose), {value});
}

Commands::Result Commands::change_namespace(const ParsedCommand& command) const {
  Namespaces& namespaces = manager_.namespaces();
  const Namespaces::Key key = namespace_key(command);
  if (key.second == Namespaces::kDefault) return {false, "default is what clients without a namespace have: it has no limits, and is always there"};
  const Namespace* const found = namespaces.find(key);
  if (command.name() == "namespace create") {
    if (found != nullptr) return {false, fmt::format("there is a namespace {} already", key.second)};
    if (Namespace* const made = namespaces.find_or_make(key); made != nullptr) {
      made->has_own_executor = command.has("--own-executor");
      namespaces.keep(*made);
      return {true, ""};
    }
    return {false, fmt::format("there are {} namespaces, which is as many as there may be: see namespace delete", Namespaces::kMost)};
  }
  if (found == nullptr) return {false, no_such(key.second)};
  if (const std::size_t clients = members_of(manager_, found).size(); clients != 0) {
    return {false, fmt::format("namespace {} has {} client{}: see ps -l", key.second, clients, clients == 1 ? "" : "s")};
  }
  namespaces.erase(key);
  manager_.requests().changed();
  return {true, ""};
}

// Clients' own priority goes with them, so it is set for each.
void Commands::set_namespace(const ParsedCommand& command, const Answer& answer) const {
  const Namespaces::Key key = namespace_key(command);
  if (manager_.namespaces().find(key) == nullptr) return answer({false, no_such(key.second)});
  Namespace& of = *manager_.namespaces().find_or_make(key);
  std::string fault;
  std::optional<std::uint32_t> percentage;
  ClientChange change;
  if (command.has("--active-thread-percentage")) percentage = proto::parse_percentage(command.text("--active-thread-percentage"));
  if (command.has("--client-priority")) change.client_priority = static_cast<std::uint32_t>(command.number("--client-priority"));
  if (percentage) fault = fault_of_percentage(*percentage);
  if (change.client_priority && fault.empty()) fault = fault_of_priority(*change.client_priority);
  const auto size_of = [&](const char* option, std::uint64_t now) {
    return command.has(option) ? proto::parse_memory_size(command.text(option)).value_or(0) : now;
  };
  const std::uint64_t limit_bytes = size_of("--pinned-memory-limit", of.memory_limit_bytes);
  const std::uint64_t request_bytes = size_of("--pinned-memory-request", of.memory_request_bytes);
  if (fault.empty()) fault = fault_of_request(manager_, of, request_bytes, limit_bytes);
  const bool has_request = command.has("--active-thread-percentage-request");
  const std::uint32_t request =
      has_request ? proto::parse_percentage(command.text("--active-thread-percentage-request")).value_or(0) : of.thread_percentage_request;
  if (has_request && fault.empty() && request != 0) fault = fault_of_percentage(1);
  if (has_request && fault.empty()) fault = manager_.requests().fault_of(key, request);
  if (!percentage && !has_request && !change.client_priority && !command.has("--pinned-memory-limit") && !command.has("--pinned-memory-request")) {
    fault =
        "there is nothing to set: give --active-thread-percentage, --active-thread-percentage-request, --pinned-memory-limit, "
        "--pinned-memory-request or --client-priority";
  }
  if (!fault.empty()) return answer({false, fault});
  const bool touches_others = request_bytes != of.memory_request_bytes || request != of.thread_percentage_request;
  if (percentage) of.thread_percentage = *percentage == proto::kWholePercentage ? 0 : *percentage;
  if (change.client_priority) of.client_priority = change.client_priority;
  of.memory_limit_bytes = limit_bytes;
  of.memory_request_bytes = request_bytes;
  if (std::exchange(of.thread_percentage_request, request) != request) manager_.requests().changed();
  change_sessions(members_of(manager_, &of), change, WhoHasEnded::needs_nothing, [this, key, touches_others, answer](const Result& done) {
    if (!done.ok || !touches_others) return answer(done);
    change_sessions(others_than(manager_, manager_.namespaces().find(key)), {}, WhoHasEnded::needs_nothing, answer);
  });
}

}  // namespace mpsshim::broker::control
