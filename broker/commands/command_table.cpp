// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/command_table.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "broker/commands/module_commands.hpp"

namespace mpsshim::broker {

namespace {

constexpr ArgumentSpec kSeconds{"SECONDS", ArgumentKind::seconds};

constexpr ArgumentSpec optional_of(ArgumentSpec argument) {
  argument.is_required = false;
  return argument;
}

std::vector<CommandSpec> questions() {
  return {
      {"get_server_list",
       {},
       {},
       Formats::json,
       false,
       "Numbers of the servers. A server keeps its number over faults and restarts, and any pid that it had names it, too"},
      {"servers", {}, {}, Formats::table, false, "Number, pid of the process now, device, user, status, clients, lives and driver of each server"},
      {"get_server_status", {}, {kServer}, Formats::json, false, "INITIALIZING, ACTIVE or FAULT"},
      {"get_client_list", {}, {kServer}, Formats::json, false, "Pids of that server's clients"},
      {"get_device_client_list",
       {},
       {optional_of(kServer)},
       Formats::json,
       false,
       "Devices, and the pids of clients that use each; of that server's clients alone"},
      {"device_query",
       {},
       {},
       Formats::table,
       false,
       "Devices that clients see: index, PCI address, UUID, name, memory in MiB, multiprocessors and compute capability"},
      {"ps",
       {{"-l"}, {"-p", kServer}},
       {},
       Formats::table,
       false,
       "Clients: pid, session, server, device, pid namespace and command; -l: state, age, device memory in MiB, percent of the "
       "multiprocessors, priority, GPU time, launches, waits and time asleep, operations in flight and user, too; -p: of that server alone"},
      {"top",
       {{"-b"},
        {"--batch", std::nullopt, false, "-b"},
        {"-n", ArgumentSpec{"COUNT", ArgumentKind::count}},
        {"--interval", ArgumentSpec{"SECONDS", ArgumentKind::interval}},
        {"--sort", ArgumentSpec{"KEY", ArgumentKind::sort_key}},
        {"-p", kServer}},
       {},
       Formats::json,
       false,
       "Clients, again and again: share of time with work on the GPU, launches a second, share of time asleep until work has ended and such waits a "
       "second, since the last look, and what ps shows, on the whole screen where ncurses is installed; -b or --batch: as text; --json: a line for "
       "each look; -n: so "
       "often; "
       "--interval: 2 s by default; --sort: by gpu (the default), launches, wait, "
       "in_flight, memory, age, pid or user; -p: of that server alone. On the screen q ends it, and g, l, w, i, m, a, p and u sort",
       true},
      {"users",
       {},
       {},
       Formats::table,
       false,
       "What clients of each user hold, of what a user may: sessions, servers, device and host memory in MiB"},
      {"get_default_device_pinned_mem_limit", {}, {kDevice}, Formats::json, false, "What set_default_device_pinned_mem_limit has set"},
      {"get_device_pinned_mem_limit", {}, {kServer, kDevice}, Formats::json, false, "What holds for clients of that server that come from now on"},
      {"get_default_active_thread_percentage", {}, {}, Formats::json, false, "What set_default_active_thread_percentage has set"},
      {"get_active_thread_percentage", {}, {kServer}, Formats::json, false, "What holds for clients of that server that come from now on"},
      {"get_default_client_priority", {}, {}, Formats::json, false, "What set_default_client_priority has set"},
  };
}

// A table, and so longer than other functions.
std::vector<CommandSpec> actions() {
  return {
      {"set_default_device_pinned_mem_limit",
       {},
       {kDevice, kSize},
       Formats::text,
       true,
       "How much device memory each client may have, of servers that have had no client yet. DEVICE: index, or UUID; SIZE: such as 900M or 10G"},
      {"set_device_pinned_mem_limit",
       {},
       {kServer, kDevice, kSize},
       Formats::text,
       true,
       "The same of that server, for clients that come from now on"},
      {"set_default_active_thread_percentage",
       {},
       {kPercentage},
       Formats::text,
       true,
       "How many of a device's multiprocessors each client may use, of servers that have had no client yet. PERCENTAGE: above 0, to 100, such as 25 "
       "or "
       "12.5; rounded down to what the device can part"},
      {"set_active_thread_percentage", {}, {kServer, kPercentage}, Formats::text, true, "The same of that server, for clients that come from now on"},
      {"set_default_client_priority",
       {},
       {optional_of(kPriority)},
       Formats::text,
       true,
       "How urgent the work of clients is that come from now on and ask for no priority themselves. PRIORITY: 0 (normal; also where it is left out) "
       "or 1 (below normal: their "
       "streams all have the device's least priority, and the others' come before them); with mpsbroker --client-priorities more, each below the "
       "one before"},
      {"start_server",
       {{"-uid", ArgumentSpec{"UID", ArgumentKind::user}, true}},
       {},
       Formats::text,
       true,
       "Sees to it that there is a server for that user"},
      {"terminate_client",
       {},
       {{"SERVER", ArgumentKind::server}, {"PID", ArgumentKind::client}},
       Formats::text,
       true,
       "Ends the work of that client, which then gets CUDA_ERROR_MPS_CLIENT_TERMINATED; answers 0 once it may be killed"},
      {"restart",
       {{"-f"}, {"-t", kSeconds}},
       {{"executors", ArgumentKind::literal, false}},
       Formats::text,
       true,
       "Goes on with the installed mpsbroker, or only with new servers, once all clients' work in flight has ended (within SECONDS, 10 by default); "
       "clients wait meanwhile. -f: whoever does not come to rest loses its session"},
      {"hold",
       {},
       {{"PID", ArgumentKind::process, false}},
       Formats::text,
       false,
       "With --exit-when-idle the broker stays as long as that process, by default the asking one, lives"},
      {"quit",
       {{"-t", kSeconds}, {"--now", std::nullopt, false, "-t"}},
       {},
       Formats::text,
       true,
       "Ends the broker when its clients have left, at the latest after SECONDS, or at once; takes no new ones meanwhile. mpsctl returns when it has "
       "ended"},
      {"cdi",
       {{"--output", ArgumentSpec{"FILE", ArgumentKind::file}}},
       {},
       Formats::text,
       true,
       "Writes the file by which container engines give containers this machine's library and socket with --device mpsshim.dev/gpu=shared (CDI 0.5). "
       "With --pipe-dir of a group's directory the device is called as the group. FILE: /etc/cdi/mpsshim.json by default, of a group "
       "mpsshim-GROUP.json; -: standard output. No broker is asked",
       true},
      {"trace",
       {{"--output", ArgumentSpec{"OUTPUT", ArgumentKind::file}}},
       {{"FILE", ArgumentKind::file}},
       Formats::text,
       false,
       "Puts together what clients and servers with MPSSHIM_TRACE=FILE have written, FILE.PID and FILE.executor.PID, to one timeline that strict "
       "parsers of JSON take as well, also where a process was killed. OUTPUT: a file; standard output by default, or as -. No broker is asked",
       true},
      {"help", {}, {}, Formats::text, false, "These lines"},
  };
}

std::vector<CommandSpec> all_commands() {
  std::vector<CommandSpec> all = questions();
  std::ranges::move(actions(), std::back_inserter(all));
  std::ranges::move(module_commands(), std::back_inserter(all));
  for (CommandSpec& command : all) {
    if ((command.is_action || command.name == "hold") && !command.is_local) command.formats = Formats::json;
    if (command.formats == Formats::text) continue;
    command.options.push_back({"--json"});
    if (command.formats == Formats::table) command.options.push_back({"--csv", std::nullopt, false, "--json"});
    command.options.push_back({"--format", ArgumentSpec{"FORMAT", ArgumentKind::format}});
  }
  return all;
}

std::string usage_of(const OptionSpec& option) {
  const std::string text = option.value ? fmt::format("{} {}", option.name, option.value->name) : std::string(option.name);
  return option.is_required ? text : '[' + text + ']';
}

// An option stays on a line with its value.
std::string wrapped_usage(const CommandSpec& command, std::size_t indent, std::size_t width) {
  constexpr char kHeldBlank = '\1';
  std::string usage = usage_of(command);
  bool is_inside = false;
  for (char& c : usage) {
    if (c == '[' || c == ']') is_inside = c == '[';
    if (c == ' ' && is_inside) c = kHeldBlank;
  }
  std::string lines = wrapped(usage, indent, width);
  std::ranges::replace(lines, kHeldBlank, ' ');
  return lines;
}

}  // namespace

const char* kind_name(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::server: return "server";
    case ArgumentKind::client: return "client";
    case ArgumentKind::any_client: return "any_client";
    case ArgumentKind::process: return "process";
    case ArgumentKind::user: return "user";
    case ArgumentKind::device: return "device";
    case ArgumentKind::size: return "size";
    case ArgumentKind::size_or_none: return "size_or_none";
    case ArgumentKind::percentage: return "percentage";
    case ArgumentKind::percentage_or_none: return "percentage_or_none";
    case ArgumentKind::client_priority: return "client_priority";
    case ArgumentKind::seconds: return "seconds";
    case ArgumentKind::interval: return "interval";
    case ArgumentKind::count: return "count";
    case ArgumentKind::sort_key: return "sort_key";
    case ArgumentKind::group: return "group";
    case ArgumentKind::partition: return "partition";
    case ArgumentKind::partition_name: return "partition_name";
    case ArgumentKind::client_field: return "client_field";
    case ArgumentKind::server_field: return "server_field";
    case ArgumentKind::namespace_field: return "namespace_field";
    case ArgumentKind::format: return "format";
    case ArgumentKind::file: return "file";
    case ArgumentKind::literal: return "literal";
  }
  return "";
}

std::span<const CommandSpec> command_table() {
  static const std::vector<CommandSpec> all = all_commands();
  return all;
}

const CommandSpec* find_command(std::string_view name) {
  const auto found = std::ranges::find(command_table(), name, &CommandSpec::name);
  return found == command_table().end() ? nullptr : &*found;
}

const CommandSpec* leading_command(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  std::string name;
  const CommandSpec* found = nullptr;
  for (int words = 0; words < 2; ++words) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
    line.remove_prefix(word.size());
    name += (words == 0 ? "" : " ") + std::string(word);
    if (const CommandSpec* const longer = find_command(name)) found = longer;
  }
  return found;
}

std::string usage_of(const CommandSpec& command) {
  std::string usage(command.name);
  for (const OptionSpec& option : command.options) {
    if (option.name == "--format") continue;  // another way to say what stands before it
    if (!option.excludes.empty()) {
      usage.pop_back();
      usage += fmt::format(" | {}]", option.name);
    } else {
      usage += ' ' + usage_of(option);
    }
  }
  for (const ArgumentSpec& argument : command.arguments) {
    usage += argument.is_required ? fmt::format(" {}", argument.name) : fmt::format(" [{}]", argument.name);
  }
  return usage;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (column != 0 && column + 1 + space > width) {
      lines += '\n';
      column = 0;
    }
    lines += column == 0 ? std::string(indent, ' ') : " ";
    lines += text.substr(0, space);
    column += (column == 0 ? indent : 1) + space;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return lines + '\n';
}

std::string commands_help(std::size_t width) {
  constexpr std::size_t kIndent = 6;
  std::string text;
  for (const CommandSpec& command : command_table()) text += wrapped_usage(command, 2, width) + wrapped(command.help, kIndent, width);
  return text;
}

}  // namespace mpsshim::broker
