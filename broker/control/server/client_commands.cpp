// SPDX-License-Identifier: Apache-2.0
// The commands about one client (`client ...`).
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "broker/control/server/commands.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

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

  std::vector<std::uint64_t> sessions;
  for (const auto& [id, session] : manager_.sessions()) {
    const bool is_its = session.client.pid == static_cast<pid_t>(command.number("PID")) && (!of_device || session.device == *of_device);
    if (is_its) sessions.push_back(id);
  }
  if (sessions.empty()) {
    return answer({false, fmt::format("there is no client with pid {}{}: see ps", command.text("PID"), of_device ? " on that device" : "")});
  }
  change_sessions(sessions, change, answer);
}

void Commands::change_sessions(const std::vector<std::uint64_t>& sessions, const ClientChange& change, const Answer& answer) const {
  if (sessions.empty()) return answer({true, ""});
  const auto pending = std::make_shared<Pending>(Pending{sessions.size(), ""});
  for (const std::uint64_t id : sessions) {
    manager_.changes().change(*manager_.find(id), change, [pending, answer](const std::string& why) {
      if (pending->fault.empty()) pending->fault = why;
      if (--pending->left == 0) answer({pending->fault.empty(), pending->fault});
    });
  }
}

}  // namespace mpsshim::broker::control
