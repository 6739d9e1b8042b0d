// SPDX-License-Identifier: Apache-2.0
// What a client asks before it has a session: what it is held to, and in which order it sees the devices.
#include <algorithm>

#include "broker/control/base/complaints.hpp"
#include "broker/control/server/client_connection.hpp"
#include "proto/device_facts.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

// A number that is out of range asks for nothing: libraries of this project read the variables, and leave out what is wrong in them.
void ClientConnection::on(const proto::ProvisionAsk& request) {
  const bool can_be_enforced = manager_.facts() != nullptr && manager_.facts()->driver_version >= proto::kFirstDriverWithShares;
  asked_.thread_percentage = can_be_enforced && request.thread_percentage <= proto::kWholePercentage ? request.thread_percentage : 0;
  asked_.client_priority = request.client_priority <= 2 ? request.client_priority : 0;
  const std::string group = proto::parse_group(request.group).value_or("");
  const bool has_group = !group.empty() && group != Namespaces::kDefault;
  set_text(asked_.group, has_group ? group : "");
  proto::ProvisionTold told;
  const Namespace* of = nullptr;
  if (has_group && (of = manager_.namespaces().find_or_make({manager_.limits().house_of(client_.uid), group})) == nullptr) {
    complain("pid {} ({}) is refused: there are {} namespaces, and its own ({}) would be one more (namespace delete).", client_.pid, client_.command,
             Namespaces::kMost, group);
    return answer(told, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  }
  for (unsigned device = 0; device < proto::kMaxDevices; ++device) {
    const std::uint32_t own = proto::lower_percentage(manager_.thread_percentage_of(client_.uid, device), asked_.thread_percentage);
    told.thread_percentage[device] = of != nullptr ? proto::lower_percentage(own, of->thread_percentage) : own;
  }
  answer(told, CUDA_SUCCESS);
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
