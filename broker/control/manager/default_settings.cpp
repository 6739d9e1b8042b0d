// SPDX-License-Identifier: Apache-2.0
// What the broker's own environment sets for its servers and clients.
#include "broker/commands/parsed_command.hpp"
#include "broker/control/manager/session_manager.hpp"
#include "broker/log.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

// By the manual the broker's own environment sets the default.
void SessionManager::take_default_limits(const proto::DriverFacts& facts) {
  const proto::MemoryLimitText limits = proto::parse_memory_limits(facts, limits_.memory_limit_text);
  if (!limits.wrong.empty()) {
    log_warning("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: \"{}\" is no limit (DEVICE=SIZE with K, M, G or T): it is left out.", limits.wrong);
  }
  for (unsigned device = 0; device < facts.device_count; ++device) {
    if (limits.limit_bytes[device] != 0) memory_limits_.set_default(device, limits.limit_bytes[device]);
  }
  if (facts.driver_version >= proto::kFirstDriverWithShares || thread_percentages_.default_value() == proto::kWholePercentage) return;
  log_warning("Clients are to have {} % of the multiprocessors, which this driver cannot enforce (CUDA 12.4 is the first that can): it is left out.",
              proto::percentage_text(thread_percentages_.default_value()));
  thread_percentages_.set_default(proto::kWholePercentage);
}

// The same. A command that comes before the first server is ready is the later word.
void SessionManager::take_default_provision() {
  const std::string& percentage_text = limits_.thread_percentage_text;
  const auto percentage = proto::parse_percentage(percentage_text);
  if (percentage) thread_percentages_.set_default(*percentage);
  if (!percentage && !percentage_text.empty())
    log_warning("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: {} is no percentage (above 0, to 100): it is left out.", as_quoted(percentage_text));
  const std::string& priority_text = limits_.client_priority_text;
  const auto priority = proto::parse_client_priority(priority_text);
  if (priority) default_client_priority_ = *priority;
  if (!priority && !priority_text.empty())
    log_warning("CUDA_MPS_CLIENT_PRIORITY: {} is no priority (0: normal, 1: below normal): it is left out.", as_quoted(priority_text));
}

}  // namespace mpsshim::broker::control
