// SPDX-License-Identifier: Apache-2.0
// The commands about static partitions: `sm_partition`, `lspart`, and `sm-partition` in the words of NVIDIA's version 3.
#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include <cuda.h>
#include <fmt/format.h>

#include "broker/control/server/cells.hpp"
#include "broker/control/server/commands.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr const char* kNoPartitions = "this broker has no static partitions: start it with --static-partitioning (-S)";
constexpr const char* kNotReady = "no server is ready: its devices are not known yet";

std::uint64_t clients_of(const SessionManager& manager, std::uint32_t partition) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(manager.sessions(), [&](const auto& entry) { return entry.second.sm_partition == partition; }));
}

std::uint64_t multiprocessors_of(const SessionManager& manager, const SmPartition& partition) {
  return manager.partitions().multiprocessors_of(partition, manager.facts()->device[partition.device]);
}

// Of each chunk.
unsigned unit_of(const SessionManager& manager, unsigned device) {
  return proto::partition_unit(manager.facts()->device[device].attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
}

unsigned free_of(const SessionManager& manager, unsigned device) {
  return static_cast<unsigned>(std::popcount(manager.partitions().free_chunks(device)));
}

std::string plural(std::uint64_t count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

}  // namespace

Commands::Result Commands::list_chunks(const ParsedCommand& command) const {
  if (!manager_.limits().has_static_partitions) return {false, kNoPartitions};
  const proto::DriverFacts* const facts = manager_.facts();
  if (facts == nullptr) return {false, kNotReady};
  Table table{{{"device"},
               {"uuid", "GPU", 24},
               {"sm_partition", "PARTITION", 12},
               {"name"},
               {"free_chunks", "FREE-CHUNKS", 13},
               {"used_chunks", "USED-CHUNKS", 13},
               {"free_sms", "FREE-SMS", 10},
               {"used_sms", "USED-SMS", 10},
               {"clients", "CLIENTS"}},
              {}};
  const Cell none{nullptr};
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const unsigned unit = unit_of(manager_, device), free = free_of(manager_, device);
    const unsigned used = manager_.partitions().chunks_of(device) - free;
    const bool has_remainder = manager_.partitions().holder_of_remainder(device) != nullptr;
    const std::uint64_t of_remainder = has_remainder ? manager_.partitions().remainder_of(device, facts->device[device]) : 0;
    table.rows.push_back({number(device), uuid(facts, device), none, none, number(free), number(used), number(std::uint64_t{free} * unit),
                          number(std::uint64_t{used} * unit + of_remainder), none});
    for (const auto& [id, partition] : manager_.partitions().all()) {
      if (partition.device != device) continue;
      const std::uint64_t clients = clients_of(manager_, id);
      table.rows.push_back({number(device),
                            uuid(facts, device),
                            {proto::partition_text(id)},
                            known(partition.name),
                            none,
                            number(partition.count()),
                            none,
                            number(multiprocessors_of(manager_, partition)),
                            {clients, clients != 0 ? "Yes" : "No"}});
    }
  }
  return answer_with(command, "partitions", table);
}

Commands::Result Commands::list_partitions(const ParsedCommand& command) const {
  if (!manager_.limits().has_static_partitions) return {false, kNoPartitions};
  const proto::DriverFacts* const facts = manager_.facts();
  if (facts == nullptr) return {false, kNotReady};
  std::string fault;
  std::optional<unsigned> only;
  if (command.has("--device") && !(only = device(command, fault, "--device"))) return {false, fault};
  Table table{{{"device"},
               {"uuid", "DEVICE", 42},
               {"name", "NAME", 18},
               {"chunks", "CHUNKS", 8},
               {"sm_count", "SM-COUNT", 10},
               {"status", "STATUS", 13},
               {"sm_partition", "VISIBLE-UUID", 14},
               {"clients", "CLIENTS"}},
              {}};
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    if (only && *only != device) continue;
    const unsigned unit = unit_of(manager_, device), free = free_of(manager_, device);
    const std::string gpu = uuid_text(facts->device[device]);
    for (const auto& [id, partition] : manager_.partitions().all()) {
      if (partition.device != device) continue;
      table.rows.push_back({number(device),
                            {gpu},
                            known(partition.name),
                            number(partition.count()),
                            number(multiprocessors_of(manager_, partition)),
                            {"created"},
                            {proto::partition_text(id)},
                            number(clients_of(manager_, id))});
    }
    if (free != 0)
      table.rows.push_back(
          {number(device), {gpu}, {nullptr}, number(free), number(std::uint64_t{free} * unit), {"unallocated"}, {nullptr}, {nullptr}});
  }
  return answer_with(command, "partitions", table);
}

Commands::Result Commands::change_partitions(const ParsedCommand& command) const {
  if (!manager_.limits().has_static_partitions) return {false, kNoPartitions};
  std::string fault;
  const auto of_device = device(command, fault, command.has("--device") ? "--device" : "DEVICE");
  if (!of_device) return {false, fault};
  const std::string_view name = command.name();
  return name.ends_with("add") || name.ends_with("create") ? add_partition(command, *of_device) : remove_partition(command, *of_device);
}

Commands::Result Commands::add_partition(const ParsedCommand& command, unsigned device) const {
  SmPartitions& partitions = manager_.partitions();
  const bool has_name = command.has("NAME");
  const std::string name = has_name ? command.text("NAME") : "";
  if (has_name && partitions.number_of(device, name) != 0) return {false, fmt::format("device {} has a partition {} already", device, name)};
  if (partitions.chunks_of(device) == 0)
    return {false,
            fmt::format("device {} cannot be cut into chunks: its driver has no green contexts (CUDA 12.4 is the first that has), or no server "
                        "of it is ready yet",
                        device)};
  const std::uint64_t wanted = command.number(has_name ? "--chunks" : "CHUNKS");
  const unsigned unit = unit_of(manager_, device), free = free_of(manager_, device);
  if (wanted > free)
    return {false, fmt::format("device {} has {} of {} multiprocessors free, and {} {} wanted: see lspart", device, plural(free, "chunk"), unit,
                               wanted, wanted == 1 ? "is" : "are")};
  const bool with_remainder = command.has("--include-remainder") && partitions.remainder_of(device, manager_.facts()->device[device]) != 0;
  if (const SmPartition* const holder = partitions.holder_of_remainder(device); with_remainder && holder != nullptr)
    return {false, fmt::format("what the chunks of device {} leave over is partition {}'s: see sm-partition list", device, holder->name)};
  const std::uint32_t made = partitions.add(device, static_cast<unsigned>(wanted), with_remainder, name);
  const std::string gpu = uuid_text(manager_.facts()->device[device]);
  const std::string id = fmt::format("{}/{}", gpu, proto::partition_text(made));
  if (!has_name) return {true, id + '\n'};
  return {true, fmt::format("SM partition '{}' created on device {} (sm-count={})\nCUDA_MPS_SM_PARTITION={}\n", name, gpu,
                            multiprocessors_of(manager_, *partitions.find(device, made)), id)};
}

Commands::Result Commands::remove_partition(const ParsedCommand& command, unsigned device) const {
  SmPartitions& partitions = manager_.partitions();
  const std::string& word = command.text("PARTITION");
  const std::uint32_t found = partitions.number_of(device, word);
  if (found == 0) return {false, fmt::format("device {} has no partition {}: see lspart", device, word)};
  if (const std::uint64_t clients = clients_of(manager_, found); clients != 0)
    return {false, fmt::format("partition {} has {}: see ps -l", proto::partition_text(found), plural(clients, "client"))};
  partitions.erase(found);
  if (command.name() == "sm_partition rm") return {true, ""};
  return {true, fmt::format("SM partition '{}' deleted from device {}\n", word, uuid_text(manager_.facts()->device[device]))};
}

}  // namespace mpsshim::broker::control
