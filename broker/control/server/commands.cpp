// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/commands.hpp"

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kHelpWidth = 118;

Commands::Result failure(std::string text) { return {false, std::move(text)}; }

}  // namespace

bool Commands::is_action(const std::string& line) {
  const CommandSpec* const spec = leading_command(line);
  return spec != nullptr && spec->is_action;
}

void Commands::execute(const std::string& line, Answer answer, pid_t asker) const {
  const auto parsed = parse_command(line);
  if (const auto* fault = std::get_if<std::string>(&parsed)) return answer(failure(*fault));
  const auto& command = std::get<ParsedCommand>(parsed);
  if (command.spec().is_local) return answer(failure(fmt::format("{} is a command of mpsctl's own, which no broker obeys", command.name())));
  if (command.name() == "help") return answer({true, commands_help(kHelpWidth)});
  if (!command.spec().is_action && command.name() != "hold") return answer(ask(command));
  if (command.format() == AnswerFormat::text) return act(command, answer, asker);
  act(
      command, [command, answer = std::move(answer)](const Result& result) { answer(in_form(command, result)); }, asker);
}

void Commands::act(const ParsedCommand& command, const Answer& answer, pid_t asker) const {
  const std::string_view name = command.name();
  if (name == "restart") return restart(command, answer);
  if (name == "terminate_client") return terminate_client(command, answer);
  if (name == "start_server") return answer(start_server(static_cast<uid_t>(command.number("-uid"))));
  if (name == "server create") return answer(start_server(static_cast<uid_t>(command.number("--uid"))));
  if (name == "server set") return answer(set_server(command));
  if (name == "quit") return answer(quit(command));
  if (name == "client set") return set_client(command, answer);
  if (name == "client terminate") return terminate_anywhere(command, answer);
  if (name == "namespace create" || name == "namespace delete") return answer(change_namespace(command));
  if (name == "namespace set") return set_namespace(command, answer);
  if (name.starts_with("sm_partition") || name.starts_with("sm-partition")) return answer(change_partitions(command));
  if (name == "hold") return answer(hold(command, asker));
  if (name.ends_with("device_pinned_mem_limit")) return answer(set_memory_limit(command));
  if (name.ends_with("active_thread_percentage")) return answer(set_thread_percentage(command));
  if (name == "set_default_client_priority") return answer(set_client_priority(command));
  answer(failure(fmt::format("{} is not obeyed", name)));  // of the table and not here: a mistake of ours, which a test looks for
}

const ManagedExecutor* Commands::server(const ParsedCommand& command, std::string_view name, std::string& fault) const {
  if (!command.has(name)) return nullptr;
  const auto asked = static_cast<pid_t>(command.number(name));
  const auto find = [&](auto is_it) -> const ManagedExecutor* {
    for (const auto& [id, executor] : manager_.executors()) {
      if (is_it(*executor)) return executor.get();
    }
    return nullptr;
  };
  // The kernel may give an old pid to another server's life.
  if (const auto* found = find([&](const ManagedExecutor& executor) { return executor.number().number() == asked; })) return found;
  if (const auto* found = find([&](const ManagedExecutor& executor) { return executor.pid() == asked; })) return found;
  if (const auto* found = find([&](const ManagedExecutor& executor) { return executor.number().had(asked); })) return found;
  fault = fmt::format("there is no server with pid {}: see get_server_list", command.text(name));
  return nullptr;
}

std::optional<unsigned> Commands::device(const ParsedCommand& command, std::string& fault, std::string_view name) const {
  if (manager_.facts() == nullptr) {
    fault = "no server is ready: its devices are not known yet";
    return std::nullopt;
  }
  const auto device = proto::device_named(*manager_.facts(), command.text(name));
  if (!device)
    fault = fmt::format("there is no device {}: an index from 0, or GPU- and a UUID's beginning, as in device_query", as_quoted(command.text(name)));
  return device;
}

Commands::Result Commands::set_memory_limit(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return failure(fault);
  const auto of_device = device(command, fault);
  if (!of_device) return failure(fault);
  const std::uint64_t bytes = proto::parse_memory_size(command.text("SIZE")).value_or(0);  // above 0: parse_command has looked
  if (executor == nullptr) {
    manager_.memory_limits().set_default(*of_device, bytes);
  } else {
    manager_.memory_limits().set(executor->id(), *of_device, bytes);
  }
  return {true, ""};
}

std::string Commands::fault_of_percentage(std::uint32_t percentage) const {
  if (manager_.limits().has_static_partitions)
    return "this broker has static partitions, in which percentages mean nothing: a client has the multiprocessors of its partition (lspart)";
  const proto::DriverFacts* const facts = manager_.facts();
  if (percentage >= proto::kWholePercentage || facts == nullptr || facts->driver_version >= proto::kFirstDriverWithShares) return "";
  return fmt::format("the driver (CUDA {}.{}) has no green contexts, and so no shares of multiprocessors: CUDA 12.4 is the first that has",
                     facts->driver_version / 1'000, facts->driver_version % 1'000 / 10);
}

std::string Commands::fault_of_priority(std::uint32_t priority) const {
  const std::uint32_t most = manager_.limits().client_priorities - 1;
  if (priority > most) return fmt::format("there are priorities 0 to {} of clients, and no {}: see mpsbroker --client-priorities", most, priority);
  const proto::DriverFacts* const facts = manager_.facts();
  for (unsigned device = 0; priority != 0 && facts != nullptr && device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    if (facts->device[device].greatest_stream_priority < facts->device[device].least_stream_priority) continue;
    return fmt::format("device {} has one priority of streams only, so no client can come before another", device);
  }
  return "";
}

Commands::Result Commands::set_thread_percentage(const ParsedCommand& command) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "PID", fault);
  if (!fault.empty()) return failure(fault);
  const std::uint32_t percentage = proto::parse_percentage(command.text("PERCENTAGE")).value_or(proto::kWholePercentage);
  if (fault = fault_of_percentage(percentage); !fault.empty()) return failure(fault);
  if (executor == nullptr) {
    manager_.thread_percentages().set_default(percentage);
  } else {
    manager_.thread_percentages().set(executor->id(), percentage);
  }
  return {true, ""};
}

Commands::Result Commands::set_client_priority(const ParsedCommand& command) const {
  const auto priority = command.has("PRIORITY") ? static_cast<std::uint32_t>(command.number("PRIORITY")) : 0;  // the manual's default
  if (const std::string fault = fault_of_priority(priority); !fault.empty()) return failure(fault);
  manager_.default_client_priority() = priority;
  return {true, ""};
}

// The broker's own user has one as long as the broker lives. Another user's comes with its first client, in milliseconds where there is no GPU to
// wake.
Commands::Result Commands::start_server(uid_t uid) const {
  if (manager_.limits().house_of(uid) == kHome && (manager_.limits().serves_all_users || uid == geteuid())) {
    manager_.memory_limits().begin({});  // what is set as a default from now on is for others
    manager_.thread_percentages().begin({});
    return {true, ""};
  }
  if (!manager_.limits().serves_all_users) {
    return failure(fmt::format("this broker serves user {} alone, and not {}: start it with --user or --multiuser-server", geteuid(), uid));
  }
  return failure(fmt::format("a server of user {} is started with that user's first client", uid));
}

void Commands::restart(const ParsedCommand& command, const Answer& answer) const {
  RestartOrder order;
  order.only_executors = command.has("executors");
  order.rest.force = command.has("-f");
  if (command.has("-t")) order.rest.patience = std::chrono::seconds(command.number("-t"));
  if (!restart_) return answer(failure("this broker cannot be restarted"));
  restart_(order, answer);
}

// As the manual's example, "0" says that the client may be killed.
void Commands::terminate_client(const ParsedCommand& command, const Answer& answer) const {
  std::string fault;
  const ManagedExecutor* const executor = server(command, "SERVER", fault);
  if (executor == nullptr) return answer(failure(fault));
  std::vector<std::uint64_t> sessions;
  for (const auto& [id, session] : manager_.sessions()) {
    if (session.executor == executor && session.client.pid == static_cast<pid_t>(command.number("PID"))) sessions.push_back(id);
  }
  if (sessions.empty()) {
    const std::string& name = command.text("SERVER");
    return answer(failure(fmt::format("server {} has no client with pid {}: see get_client_list {}", name, command.text("PID"), name)));
  }
  // A client ends as a whole: what it has on other devices, too, which are other servers here and the same one of NVIDIA's.
  const ClientIdentity client = manager_.find(sessions.front())->client;
  for (const auto& [id, session] : manager_.sessions()) {
    const bool is_elsewhere = session.device != executor->device() && session.phase != SessionPhase::closing;
    if (is_elsewhere && is_one_process(session.client, client)) sessions.push_back(id);
  }
  terminate_sessions(sessions, answer);
}

void Commands::terminate_sessions(const std::vector<std::uint64_t>& sessions, const Answer& answer) const {
  const auto left = std::make_shared<std::size_t>(sessions.size());
  for (const std::uint64_t id : sessions) {
    if (ClientSession* session = manager_.find(id)) {
      manager_.terminate(*session, [left, answer] {
        if (--*left == 0) answer({true, "0\n"});
      });
    }
  }
}

Commands::Result Commands::quit(const ParsedCommand& command) const {
  std::optional<std::chrono::seconds> patience;
  if (command.has("-t")) patience = std::chrono::seconds(command.number("-t"));
  if (command.has("--now")) patience = std::chrono::seconds(0);
  quit_(patience);
  return {true, ""};
}

Commands::Result Commands::hold(const ParsedCommand& command, pid_t asker) const {
  const pid_t pid = command.has("PID") ? static_cast<pid_t>(command.number("PID")) : asker;
  return hold_ ? hold_(pid) : failure("this broker cannot be held");
}

}  // namespace mpsshim::broker::control
