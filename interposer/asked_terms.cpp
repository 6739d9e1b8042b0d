// SPDX-License-Identifier: Apache-2.0
#include "interposer/asked_terms.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "interposer/environment.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"
#include "proto/handshake.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::interposer {

namespace {

// What the environment says of this process. What is wrong in it is told once, and is as if it were not there.
template <typename Value>
std::optional<Value> asked_by(Variable variable, std::optional<Value> (*parse)(std::string_view), const char* meaning, std::atomic<bool>& told) {
  const std::string_view text = environment_value(variable);
  if (text.empty()) return std::nullopt;
  std::optional<Value> value = parse(text);
  if (!value && !told.exchange(true, std::memory_order_relaxed)) {
    log_line("%s: \"%.*s\" is no %s: it is left out.", variable_name(variable), static_cast<int>(std::min<std::size_t>(text.size(), 200)),
             text.data(), meaning);
  }
  return value;
}

// Where nothing in it can be meant, the broker refuses a session, and that is told then (channel/refusal.hpp).
void tell_partitions(const proto::PartitionsText& asked, const proto::PartitionTold& told) {
  static std::atomic<bool> was_told{false};
  const std::string_view share = environment_value(Variable::thread_percentage);
  const bool has_some = std::ranges::any_of(asked.partition, [](std::uint32_t partition) { return partition != 0; });
  const bool has_wrong = has_some && !asked.wrong.empty();
  if (told.is_static != 0 && share.empty() && !has_wrong) return;
  if (was_told.exchange(true, std::memory_order_relaxed)) return;
  const char* const name = variable_name(Variable::sm_partition);
  if (told.is_static == 0) {
    log_line("%s is set and without effect: this broker has no static partitions (mpsbroker --static-partitioning).", name);
  } else if (has_wrong) {
    log_line("%s: \"%.*s\" is no partition (a device's UUID or index, a slash and P with its number, as mpsctl lspart has them): it is left out.",
             name, static_cast<int>(std::min<std::size_t>(asked.wrong.size(), 200)), asked.wrong.data());
  } else {
    log_line("%s is set and without effect: this broker has static partitions.", variable_name(Variable::thread_percentage));
  }
}

CUresult ask_partitions(Connection& connection) {
  const std::string_view text = environment_value(Variable::sm_partition);
  if (text.empty() || text == "0") return CUDA_SUCCESS;
  const proto::PartitionsText asked = proto::parse_partitions(driver_facts(), text);
  proto::PartitionAsk question;
  std::ranges::copy(asked.partition, question.partition);
  proto::PartitionTold told;
  if (const CUresult error = connection.ask(question, told); error != CUDA_SUCCESS) return error;
  for (std::uint32_t device = 0; device < proto::kMaxDevices; ++device) note_partition(device, told.multiprocessors[device]);
  tell_partitions(asked, told);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ask_provision(Connection& connection) {
  proto::ProvisionAsk question;
  static std::atomic<bool> percentage_told{false};
  static std::atomic<bool> priority_told{false};
  question.thread_percentage =
      asked_by(Variable::thread_percentage, proto::parse_percentage, "percentage (above 0, to 100, such as 25 or 12.5)", percentage_told).value_or(0);
  if (question.thread_percentage != 0 && question.thread_percentage < proto::kWholePercentage && !driver_has_shares() &&
      !percentage_told.exchange(true, std::memory_order_relaxed)) {
    log_line("%s is set and without effect: CUDA 12.4 is the first driver that can enforce it.", variable_name(Variable::thread_percentage));
  }
  const auto priority = asked_by(Variable::client_priority, proto::parse_client_priority,
                                 "priority (0: normal, 1: below normal; 2 and 3 where the broker has them)", priority_told);
  question.client_priority = priority ? *priority + 1 : 0;
  static std::atomic<bool> group_told{false};
  const auto group = asked_by(Variable::group, proto::parse_group, "group (lowercase letters, digits and underscores, 64 at most)", group_told);
  if (group) group->copy(question.group, proto::kMostGroupName);
  proto::ProvisionTold told;
  if (const CUresult error = connection.ask(question, told); error != CUDA_SUCCESS) return error;
  for (std::uint32_t device = 0; device < proto::kMaxDevices; ++device) note_thread_percentage(device, told.thread_percentage[device]);
  return ask_partitions(connection);
}

}  // namespace mpsshim::interposer
