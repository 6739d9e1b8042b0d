// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/commands.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "broker/control/base/process_identity.hpp"
#include "proto/memory_limit.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr const char* kHelp =
    "get_server_list             numbers of the servers; a server keeps its number over faults and restarts, and any pid it had names it, too\n"
    "servers                     number, pid of the process now, device, user, status, clients, lives and driver of each\n"
    "get_server_status PID       INITIALIZING, ACTIVE or FAULT\n"
    "get_client_list PID         pids of that server's clients\n"
    "ps [-l] [-p PID]            clients: pid, session, server, device, pid namespace, command; -l: state, device memory in MiB and user too\n"
    "get_device_client_list [PID]\n"
    "                            devices, and the pids of clients that use each, of that server alone\n"
    "start_server -uid UID       sees to it that there is a server for that user\n"
    "set_default_device_pinned_mem_limit DEVICE SIZE, get_default_device_pinned_mem_limit DEVICE\n"
    "                            how much device memory each client may have, of servers that have had no client yet; 900M, 10G; DEVICE: index or "
    "UUID\n"
    "set_device_pinned_mem_limit PID DEVICE SIZE, get_device_pinned_mem_limit PID DEVICE\n"
    "                            the same of that server, for clients that come from now on\n"
    "users                       what clients of each user hold, of what a user may: sessions, servers, device and host memory in MiB\n"
    "restart [-f] [-t SECONDS] [executors]\n"
    "                            goes on with the installed mpsbroker, or only with new servers, once all clients' work in flight has ended (within\n"
    "                            SECONDS, 10 by default); clients wait meanwhile. -f: whoever does not come to rest loses its session\n"
    "terminate_client SERVER PID ends the work of that client, which then gets CUDA_ERROR_MPS_CLIENT_TERMINATED; 0 once it may be killed\n"
    "hold [PID]                  with --exit-when-idle the broker stays as long as that process, by default the asking one, lives\n"
    "quit [-t SECONDS | --now]   ends the broker when its clients have left, at the latest after SECONDS, or at once; takes no new ones meanwhile.\n"
    "                            mpsctl returns when it has ended\n";

std::optional<long> number(const std::string& text) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Commands::Result failure(std::string text) { return {false, std::move(text)}; }

Commands::Result no_such_server(const std::string& pid) {
  return failure(fmt::format("there is no server with pid {}: see get_server_list", pid));
}

// "-" where there is none.
std::string shown(pid_t pid) { return pid > 0 ? std::to_string(pid) : "-"; }

// "GPU-cb1213a3-d6a4-be7f": enough of the UUID to tell devices apart, as NVIDIA's ps prints it.
std::string device_name(const proto::DriverFacts* facts, unsigned device) {
  if (facts == nullptr) return fmt::format("{}", device);
  const std::uint8_t* id = facts->device[device].uuid;
  return fmt::format("GPU-{:02x}{:02x}{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}", id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]);
}

}  // namespace

bool Commands::is_action(const std::string& line) {
  return line.starts_with("quit") || line.starts_with("set_") || line.starts_with("start_server") || line.starts_with("restart") ||
         line.starts_with("terminate_client");
}

void Commands::execute(const std::string& line, Answer answer, pid_t asker) const {
  std::istringstream words(line);
  std::string name;
  words >> name;
  Arguments arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  if (name == "ps") return answer(ps(arguments));
  if (name == "get_server_list") return answer(get_server_list(arguments));
  if (name == "get_server_status") return answer(get_server_status(arguments));
  if (name == "get_client_list") return answer(get_client_list(arguments));
  if (name == "servers") return answer(servers(arguments));
  if (name == "get_device_client_list") return answer(get_device_client_list(arguments));
  if (name.ends_with("device_pinned_mem_limit")) return answer(memory_limit(name, arguments));
  if (name == "start_server") return answer(start_server(arguments));
  if (name == "users") return answer(users(arguments));
  if (name == "restart") return restart(arguments, answer);
  if (name == "terminate_client") return terminate_client(arguments, answer);
  if (name == "quit") return answer(quit(arguments));
  if (name == "hold") return answer(hold(arguments, asker));
  if (name == "help") return answer({true, kHelp});
  answer(failure(fmt::format("unknown command \"{}\": see help", name)));
}

const ManagedExecutor* Commands::server(const std::string& pid) const {
  const auto wanted = number(pid);
  if (!wanted || *wanted == 0 || *wanted > std::numeric_limits<pid_t>::max()) return nullptr;
  const auto asked = static_cast<pid_t>(*wanted);
  const auto find = [&](auto is_it) -> const ManagedExecutor* {
    for (const auto& [name, executor] : manager_.executors()) {
      if (is_it(*executor)) return executor.get();
    }
    return nullptr;
  };
  // The kernel may give an old pid to another server's life.
  if (const auto* found = find([&](const ManagedExecutor& executor) { return executor.number().number() == asked; })) return found;
  if (const auto* found = find([&](const ManagedExecutor& executor) { return executor.pid() == asked; })) return found;
  return find([&](const ManagedExecutor& executor) { return executor.number().had(asked); });
}

Commands::Result Commands::ps(const Arguments& arguments) const {
  const ManagedExecutor* only = nullptr;
  bool is_long = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "-l") {
      is_long = true;
    } else if (arguments[i] == "-p" && i + 1 < arguments.size()) {
      only = server(arguments[++i]);
      if (only == nullptr) return no_such_server(arguments[i]);
    } else {
      return failure("usage: ps [-l] [-p PID]");
    }
  }
  const auto row = [is_long](const auto& pid, const auto& id, const auto& executor, const std::string& device, const std::string& name_space,
                             const std::string& state, const auto& memory, const auto& user, const std::string& command) {
    const std::string more = is_long ? fmt::format("{:<13}{:<9}{:<9}", state, memory, user) : "";
    return fmt::format("{:<10}{:<7}{:<10}{:<24}{:<13}{}{}\n", pid, id, executor, device, name_space, more, command);
  };
  std::string text = row("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "STATE", "MEMORY", "USER", "COMMAND");
  for (const auto& [id, session] : manager_.sessions()) {
    if (only != nullptr && only != session.executor) continue;
    const std::string pid = shown(session.executor != nullptr ? session.executor->number().number() : -1);
    text += row(session.client.pid, id, pid, device_name(manager_.facts(), session.device), pid_namespace_of(session.client.pid),
                phase_name(session.phase), session.chunks.total_bytes() >> 20, session.client.uid, session.client.command);
  }
  return {true, text};
}

Commands::Result Commands::get_server_list(const Arguments& arguments) const {
  if (!arguments.empty()) return failure("usage: get_server_list");
  std::string text;
  for (const auto& [name, executor] : manager_.executors()) {
    if (executor->number().number() > 0 && !executor->is_quitting()) text += fmt::format("{}\n", executor->number().number());
  }
  return {true, text};
}

Commands::Result Commands::servers(const Arguments& arguments) const {
  if (!arguments.empty()) return failure("usage: servers");
  constexpr const char* kRow = "{:<10}{:<10}{:<24}{:<11}{:<14}{:<9}{:<7}{}\n";
  std::string text = fmt::format(kRow, "SERVER", "PID", "DEVICE", "USER", "STATUS", "CLIENTS", "LIVES", "DRIVER");
  for (const auto& [name, executor] : manager_.executors()) {
    const auto is_its = [server = executor.get()](const auto& entry) { return entry.second.executor == server; };
    const auto clients = std::ranges::count_if(manager_.sessions(), is_its);
    text += fmt::format(kRow, shown(executor->number().number()), shown(executor->pid()), device_name(manager_.facts(), executor->device()),
                        executor->log_user(), state_name(executor->state()), clients, executor->epoch(), executor->driver());
  }
  return {true, text};
}

Commands::Result Commands::get_server_status(const Arguments& arguments) const {
  if (arguments.size() != 1) return failure("usage: get_server_status PID");
  const ManagedExecutor* executor = server(arguments[0]);
  if (executor == nullptr) return no_such_server(arguments[0]);
  return {true, fmt::format("{}\n", state_name(executor->state()))};
}

Commands::Result Commands::get_client_list(const Arguments& arguments) const {
  if (arguments.size() != 1) return failure("usage: get_client_list PID");
  const ManagedExecutor* executor = server(arguments[0]);
  if (executor == nullptr) return no_such_server(arguments[0]);
  std::string text;
  for (const auto& [id, session] : manager_.sessions()) {
    if (session.executor == executor && session.phase != SessionPhase::closing) text += fmt::format("{}\n", session.client.pid);
  }
  return {true, text};
}

Commands::Result Commands::get_device_client_list(const Arguments& arguments) const {
  if (arguments.size() > 1) return failure("usage: get_device_client_list [PID]");
  const ManagedExecutor* const only = arguments.empty() ? nullptr : server(arguments[0]);
  if (!arguments.empty() && only == nullptr) return no_such_server(arguments[0]);
  if (manager_.facts() == nullptr) return failure("no server is ready: its devices are not known yet");
  std::string text;
  for (unsigned device = 0; device < manager_.facts()->device_count; ++device) {
    std::string pids;
    for (const auto& [id, session] : manager_.sessions()) {
      const bool is_wanted = session.device == device && session.phase != SessionPhase::closing && (only == nullptr || session.executor == only);
      if (is_wanted) pids += fmt::format("{}\n", session.client.pid);
    }
    text += fmt::format("{}\n{}", device_name(manager_.facts(), device), pids);
  }
  return {true, text};
}

// The manual has no word for the size without a limit.
Commands::Result Commands::memory_limit(const std::string& name, const Arguments& arguments) const {
  const bool is_set = name.starts_with("set_");
  const bool is_default = name.ends_with("_default_device_pinned_mem_limit");
  if (name != fmt::format("{}{}device_pinned_mem_limit", is_set ? "set_" : "get_", is_default ? "default_" : "")) {
    return failure(fmt::format("unknown command \"{}\": see help", name));
  }
  const std::size_t at = is_default ? 0 : 1;
  if (arguments.size() != at + (is_set ? 2 : 1)) {
    return failure(fmt::format("usage: {} {}DEVICE{}", name, is_default ? "" : "PID ", is_set ? " SIZE" : ""));
  }
  const ManagedExecutor* const executor = is_default ? nullptr : server(arguments[0]);
  if (!is_default && executor == nullptr) return no_such_server(arguments[0]);
  if (manager_.facts() == nullptr) return failure("no server is ready: its devices are not known yet");
  const auto device = proto::device_named(*manager_.facts(), arguments[at]);
  if (!device) return failure(fmt::format("there is no device {}: an index from 0, or GPU- and a UUID's beginning", arguments[at]));
  MemoryLimits& limits = manager_.memory_limits();
  if (is_set) {
    const auto bytes = proto::parse_memory_size(arguments[at + 1]);
    if (!bytes) return failure(fmt::format("{} is no size: an integer above 0 with M or G, such as 900M", arguments[at + 1]));
    if (is_default) {
      limits.set_default(*device, *bytes);
    } else {
      limits.set(executor->id(), *device, *bytes);
    }
    return {true, ""};
  }
  const std::uint64_t bytes = is_default ? limits.default_of(*device) : limits.of_server(executor->id(), *device);
  if (bytes == 0) return {true, "no limit\n"};
  if (bytes % (1ull << 30) == 0) return {true, fmt::format("{}G\n", bytes >> 30)};
  return {true, bytes % (1ull << 20) == 0 ? fmt::format("{}M\n", bytes >> 20) : fmt::format("{}K\n", bytes >> 10)};
}

// The broker's own user has one as long as the broker lives. Another user's comes with its first client, in milliseconds where there is no GPU to
// wake.
Commands::Result Commands::start_server(const Arguments& arguments) const {
  const auto uid = arguments.size() == 2 && arguments[0] == "-uid" ? number(arguments[1]) : std::nullopt;
  if (!uid) return failure("usage: start_server -uid UID");
  if (manager_.limits().house_of(static_cast<uid_t>(*uid)) == kHome &&
      (manager_.limits().serves_all_users || static_cast<uid_t>(*uid) == geteuid())) {
    return {true, ""};
  }
  if (!manager_.limits().serves_all_users) {
    return failure(fmt::format("this broker serves user {} alone: start it with --user or --multiuser-server", geteuid()));
  }
  return failure(fmt::format("a server of user {} is started with that user's first client", *uid));
}

Commands::Result Commands::users(const Arguments& arguments) const {
  if (!arguments.empty()) return failure("usage: users");
  const SessionLimits& limits = manager_.limits();
  const UserLimits& user = limits.resources.user;
  const auto of = [](std::uint64_t held, std::uint64_t own, std::uint64_t all) { return fmt::format("{}/{}", held, own != 0 ? own : all); };
  // "512/1024"; of two devices "512+0/1024".
  const auto device_of = [&user](const std::vector<std::uint64_t>& held) {
    std::string text = held.empty() ? "0" : "";
    for (const std::uint64_t bytes : held) text += fmt::format("{}{}", text.empty() ? "" : "+", bytes >> 20);
    return user.device_bytes != 0 ? fmt::format("{}/{}", text, user.device_bytes >> 20) : text;
  };
  constexpr const char* kRow = "{:<11}{:<15}{:<10}{:<17}{}\n";
  std::string text = fmt::format(kRow, "USER", "SESSIONS", "SERVERS", "DEVICE", "HOST");
  for (const auto& [uid, held] : manager_.holdings()) {
    std::set<const ManagedExecutor*> servers;
    for (const auto& [id, session] : manager_.sessions()) {
      if (session.client.uid == uid && session.executor != nullptr) servers.insert(session.executor);
    }
    text += fmt::format(kRow, uid, of(held.sessions, user.sessions, limits.max_clients), of(servers.size(), 0, limits.pool.executors),
                        device_of(held.device_bytes), of(held.host_bytes >> 20, user.host_bytes >> 20, limits.resources.all_host_bytes >> 20));
  }
  return {true, text};
}

void Commands::restart(const Arguments& arguments, const Answer& answer) const {
  const Result usage = failure("usage: restart [-f] [-t SECONDS] [executors]");
  RestartOrder order;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "executors") {
      order.only_executors = true;
    } else if (arguments[i] == "-f") {
      order.rest.force = true;
    } else if (arguments[i] == "-t" && i + 1 < arguments.size() && number(arguments[i + 1]) && *number(arguments[i + 1]) <= 1'000'000) {
      order.rest.patience = std::chrono::seconds(*number(arguments[++i]));
    } else {
      return answer(usage);
    }
  }
  if (!restart_) return answer(failure("this broker cannot be restarted"));
  restart_(order, answer);
}

// As the manual's example, "0" says that the client may be killed.
void Commands::terminate_client(const Arguments& arguments, const Answer& answer) const {
  if (arguments.size() != 2) return answer(failure("usage: terminate_client SERVER PID"));
  const ManagedExecutor* executor = server(arguments[0]);
  if (executor == nullptr) return answer(no_such_server(arguments[0]));
  std::vector<std::uint64_t> sessions;
  for (const auto& [id, session] : manager_.sessions()) {
    if (session.executor == executor && number(arguments[1]) == session.client.pid) sessions.push_back(id);
  }
  if (sessions.empty()) {
    return answer(failure(fmt::format("server {} has no client with pid {}: see get_client_list {}", arguments[0], arguments[1], arguments[0])));
  }
  const auto left = std::make_shared<std::size_t>(sessions.size());
  for (const std::uint64_t id : sessions) {
    if (ClientSession* session = manager_.find(id)) {
      manager_.terminate(*session, [left, answer] {
        if (--*left == 0) answer({true, "0\n"});
      });
    }
  }
}

Commands::Result Commands::quit(const Arguments& arguments) const {
  std::optional<std::chrono::seconds> patience;
  if (arguments.size() == 2 && arguments[0] == "-t" && number(arguments[1]) && *number(arguments[1]) <= 1'000'000) {
    patience = std::chrono::seconds(*number(arguments[1]));
  } else if (arguments.size() == 1 && arguments[0] == "--now") {
    patience = std::chrono::seconds(0);
  } else if (!arguments.empty()) {
    return failure("usage: quit [-t SECONDS | --now]");
  }
  quit_(patience);
  return {true, ""};
}

Commands::Result Commands::hold(const Arguments& arguments, pid_t asker) const {
  const std::optional<long> pid = arguments.empty() ? std::optional<long>(asker) : number(arguments[0]);
  if (arguments.size() > 1 || !pid || *pid > std::numeric_limits<pid_t>::max()) return failure("usage: hold [PID]");
  return hold_ ? hold_(static_cast<pid_t>(*pid)) : failure("this broker cannot be held");
}

}  // namespace mpsshim::broker::control
