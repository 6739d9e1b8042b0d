// SPDX-License-Identifier: Apache-2.0
// What a client asks before it has a session: what it is held to, and in which order it sees the devices.
#include <algorithm>

#include <cuda.h>
#include <fmt/format.h>

#include "broker/control/base/complaints.hpp"
#include "broker/control/server/client_connection.hpp"
#include "proto/device_facts.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

// A number that is out of range asks for nothing: libraries of this project read the variables, and leave out what is wrong in them.
void ClientConnection::on(const proto::ProvisionAsk& request) {
  const bool can_be_enforced = manager_.facts() != nullptr && manager_.facts()->driver_version >= proto::kFirstDriverWithShares;
  const std::uint32_t priorities = manager_.limits().client_priorities;
  asked_.thread_percentage = can_be_enforced && request.thread_percentage <= proto::kWholePercentage ? request.thread_percentage : 0;
  asked_.client_priority = std::min(request.client_priority, priorities);
  if (request.client_priority > priorities) {
    complain("pid {} ({}) asks for priority {} of clients; there are 0 to {} (--client-priorities), and it has {}.", client_.pid, client_.command,
             request.client_priority - 1, priorities - 1, priorities - 1);
  }
  const std::string group = group_.empty() ? proto::parse_group(request.group).value_or("") : group_;
  const bool is_parted = manager_.limits().has_static_partitions;
  const bool has_group = !group.empty() && group != Namespaces::kDefault;
  set_text(asked_.group, has_group ? group : "");
  proto::ProvisionTold told;
  const Namespace* of = nullptr;
  if (has_group && (of = manager_.namespaces().find_or_make({manager_.limits().house_of(client_.uid), group})) == nullptr) {
    complain("pid {} ({}) is refused: there are {} namespaces, and its own ({}) would be one more (namespace delete).", client_.pid, client_.command,
             Namespaces::kMost, group);
    return answer(told, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  }
  for (unsigned device = 0; !is_parted && device < proto::kMaxDevices; ++device) {
    const std::uint32_t own = proto::lower_percentage(manager_.thread_percentage_of(client_.uid, device), asked_.thread_percentage);
    const std::uint32_t left = manager_.requests().percentage_left(manager_.limits().house_of(client_.uid), of, device);
    told.thread_percentage[device] = proto::lower_percentage(proto::lower_percentage(own, of != nullptr ? of->thread_percentage : 0), left);
  }
  answer(told, CUDA_SUCCESS);
}

// What is asked for is looked at again when a session begins: until then a command may take the partition away.
void ClientConnection::on(const proto::PartitionAsk& request) {
  asked_partitions_ = request;
  proto::PartitionTold told;
  const proto::DriverFacts* const facts = manager_.facts();
  told.is_static = manager_.limits().has_static_partitions ? 1 : 0;
  for (unsigned device = 0; facts != nullptr && told.is_static != 0 && device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const SmPartition* const partition = manager_.partitions().find(device, request.partition[device]);
    if (partition != nullptr) told.multiprocessors[device] = manager_.partitions().multiprocessors_of(*partition, facts->device[device]);
  }
  answer(told, CUDA_SUCCESS);
}

bool ClientConnection::has_its_partition(unsigned device) const {
  if (!manager_.limits().has_static_partitions) return true;
  const std::uint32_t asked = device < proto::kMaxDevices ? asked_partitions_.partition[device] : 0;
  if (manager_.partitions().find(device, asked) != nullptr) return true;
  complain("pid {} ({}) gets no session on device {}: {}, and this broker has static partitions alone (--static-partitioning).", client_.pid,
           client_.command, device,
           asked == 0 ? "its CUDA_MPS_SM_PARTITION names no partition of that"
                      : fmt::format("there is no partition {} of that", proto::partition_text(asked)));
  return false;
}

void ClientConnection::on(const proto::DeviceOrderAsk&) {
  const auto devices = manager_.facts() != nullptr ? std::min(manager_.facts()->device_count, proto::kMaxDevices) : 0;
  proto::DeviceOrderTold told;
  told.count = devices;
  for (std::uint32_t i = 0; i < devices; ++i) told.device[i] = i;
  if (place_.order().empty()) place_ = manager_.place_newcomer(client_);
  std::ranges::copy(place_.order(), told.device);
  answer(told, CUDA_SUCCESS);
}

}  // namespace mpsshim::broker::control
