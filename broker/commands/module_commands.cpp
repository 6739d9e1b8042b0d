// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/module_commands.hpp"

#include <algorithm>
#include <iterator>

namespace mpsshim::broker {

namespace {

constexpr std::string_view kClientFields[] = {
    "pid",         "server", "device", "pci-id", "linux-ns", "maws-ns", "cmd", "active-thread-percentage", "pinned-memory-limit", "client-priority",
    "sm-partition"};
constexpr std::string_view kServerFields[] = {
    "server", "pid", "uid", "device", "status", "clients", "active-thread-percentage", "pinned-memory-limit"};
constexpr std::string_view kNamespaceFields[] = {"uid",
                                                 "clients",
                                                 "active-thread-percentage",
                                                 "active-thread-percentage-request",
                                                 "pinned-memory-limit",
                                                 "pinned-memory-request",
                                                 "client-priority",
                                                 "own-executor"};

std::vector<CommandSpec> client_commands() {
  const ArgumentSpec pid{"PID", ArgumentKind::any_client};
  return {
      {"client list",
       {{"--server", kServer}, {"--all"}},
       {},
       Formats::table,
       false,
       "Clients: pid, server, device, group and command; of all servers, or of one"},
      {"client get",
       {},
       {pid, {"FIELD", ArgumentKind::client_field}},
       Formats::table,
       false,
       "One word about a client, a line for each of its devices. FIELD: pid, server, device, pci-id, linux-ns (of pids), maws-ns (its group), cmd, "
       "or of "
       "ours active-thread-percentage, pinned-memory-limit, client-priority, sm-partition"},
      {"client terminate", {}, {pid}, Formats::text, true, "As terminate_client, on whatever servers the client has"},
      {"client set",
       {{"--active-thread-percentage", kPercentage},
        {"--pinned-memory-limit", ArgumentSpec{"SIZE|none", ArgumentKind::size_or_none}},
        {"--client-priority", kPriority},
        {"--device", kDevice}},
       {pid},
       Formats::text,
       true,
       "Gives a client that is connected another part of the multiprocessors, another limit of device memory or another priority, on all its devices "
       "or "
       "on one. Launches and allocations that come from then on go by it, whatever server and client were given before; answers once that is so"},
  };
}

std::vector<CommandSpec> namespace_commands() {
  const OptionSpec user{"--uid", ArgumentSpec{"UID", ArgumentKind::user}};
  const ArgumentSpec name{"NAME", ArgumentKind::group};
  return {
      {"namespace list",
       {},
       {},
       Formats::table,
       false,
       "Groups of clients that share limits (MPSSHIM_GROUP, mpsrun --group): user, clients, device memory that they hold, that is kept for them and "
       "that they may hold together, parts of the multiprocessors that they have among them and that are kept for them, priority"},
      {"namespace get",
       {user},
       {name, {"FIELD", ArgumentKind::namespace_field}},
       Formats::table,
       false,
       "One word about a group. FIELD: active-thread-percentage, active-thread-percentage-request, pinned-memory-limit, pinned-memory-request, "
       "client-priority, own-executor (yes or "
       "no), "
       "clients (how many), uid"},
      {"namespace create",
       {{"--own-executor"}, user},
       {name},
       Formats::text,
       true,
       "Makes a group, without limits. One is also made by its first client. --own-executor: its clients are served by an executor of their own, "
       "which "
       "takes one of --executors, so that their faults reach nobody else; where none can be had they are not served"},
      {"namespace set",
       {{"--active-thread-percentage", kPercentage},
        {"--active-thread-percentage-request", ArgumentSpec{"PERCENTAGE|none", ArgumentKind::percentage_or_none}},
        {"--pinned-memory-limit", ArgumentSpec{"SIZE|none", ArgumentKind::size_or_none}},
        {"--pinned-memory-request", ArgumentSpec{"SIZE|none", ArgumentKind::size_or_none}},
        {"--client-priority", kPriority},
        user},
       {name},
       Formats::text,
       true,
       "Sets what all clients of a group have together: a part of each device's multiprocessors, and device memory on each; requests are "
       "what is kept for them: others are refused device memory that would leave less, and keep off that part of the multiprocessors while any of "
       "them is at work, and for a while behind that. The priority is that of each of them. It holds for clients that are "
       "connected as well; answers once that is so. --uid: of that user's group, by default the broker's "
       "own"},
      {"namespace delete", {user}, {name}, Formats::text, true, "Forgets a group that has no clients"},
      {"device list",
       {},
       {},
       Formats::table,
       false,
       "Devices: index, PCI address, UUID, name, multiprocessors, and in how many parts they can be given to clients (active_thread_percentage)"},
  };
}

std::vector<CommandSpec> partition_commands() {
  const ArgumentSpec chunks{"CHUNKS", ArgumentKind::count};
  const ArgumentSpec partition{"PARTITION", ArgumentKind::partition};
  const OptionSpec of_device{"--device", kDevice, true};
  return {
      {"lspart",
       {},
       {},
       Formats::table,
       false,
       "Static partitions of the multiprocessors, with mpsbroker --static-partitioning: a row for each device and for each partition of it, with "
       "free "
       "and used chunks and multiprocessors, and whether it has clients"},
      {"sm_partition add",
       {},
       {kDevice, chunks},
       Formats::text,
       true,
       "Makes a static partition of so many chunks (lspart) of a device, which no other has. Answers what CUDA_MPS_SM_PARTITION of its clients is to "
       "be"},
      {"sm_partition rm", {}, {kDevice, partition}, Formats::text, true, "Takes a partition away that has no clients"},
      {"sm-partition create",
       {of_device, {"--chunks", chunks, true}, {"--include-remainder"}},
       {{"NAME", ArgumentKind::partition_name}},
       Formats::text,
       true,
       "As sm_partition add, with a name for operators, one of its device. With --include-remainder what the device's chunks leave over is "
       "this one's, too, as far as there is any"},
      {"sm-partition delete", {of_device}, {partition}, Formats::text, true, "As sm_partition rm, by name or number"},
      {"sm-partition list",
       {{"--device", kDevice}, {"--all"}},
       {},
       Formats::table,
       false,
       "Partitions of all devices, or of one: device, name, chunks, multiprocessors, state, number and clients; and what of each device is in none"},
  };
}

// Servers have numbers and no names, and are there as long as somebody needs them.
std::vector<CommandSpec> server_commands() {
  return {
      {"server list", {{"--all"}}, {}, Formats::table, false, "As servers"},
      {"server create",
       {{"--uid", ArgumentSpec{"UID", ArgumentKind::user}, true}},
       {},
       Formats::text,
       true,
       "Sees to it that there is a server for that user, as start_server"},
      {"server get",
       {},
       {kServer, {"FIELD", ArgumentKind::server_field}},
       Formats::table,
       false,
       "One word about a server. FIELD: server (its number), pid (of its process now), uid, device, status, clients (how many), and what each of "
       "them "
       "may have: active-thread-percentage, pinned-memory-limit"},
      {"server set",
       {{"--active-thread-percentage", kPercentage},
        {"--pinned-memory-limit", ArgumentSpec{"SIZE|none", ArgumentKind::size_or_none}},
        {"--device", kDevice}},
       {kServer},
       Formats::text,
       true,
       "What each client of a server may have that comes from now on: a part of the multiprocessors, device memory on all its devices or on one. As "
       "set_active_thread_percentage and set_device_pinned_mem_limit"},
  };
}

}  // namespace

std::span<const std::string_view> fields_of(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::client_field: return kClientFields;
    case ArgumentKind::server_field: return kServerFields;
    case ArgumentKind::namespace_field: return kNamespaceFields;
    default: return {};
  }
}

std::vector<CommandSpec> module_commands() {
  std::vector<CommandSpec> all = client_commands();
  std::ranges::move(namespace_commands(), std::back_inserter(all));
  std::ranges::move(partition_commands(), std::back_inserter(all));
  std::ranges::move(server_commands(), std::back_inserter(all));
  return all;
}

}  // namespace mpsshim::broker
