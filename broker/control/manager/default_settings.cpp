// SPDX-License-Identifier: Apache-2.0
// What the broker's own environment sets for its servers and clients, and what a session is to have by all that is set.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "broker/commands/parsed_command.hpp"
#include "broker/control/manager/session_manager.hpp"
#include "broker/log.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

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
  take_requests_back(facts);
  make_partitions(facts);
  if (facts.driver_version >= proto::kFirstDriverWithShares || thread_percentages_.default_value() == proto::kWholePercentage) return;
  log_warning("Clients are to have {} % of the multiprocessors, which this driver cannot enforce (CUDA 12.4 is the first that can): it is left out.",
              proto::percentage_text(thread_percentages_.default_value()));
  thread_percentages_.set_default(proto::kWholePercentage);
}

// Those of a file of settings. In its order, so that their numbers are known beforehand.
void SessionManager::make_partitions(const proto::DriverFacts& facts) {
  const auto has_remainder = [&](const PartitionWish& wish, unsigned device) {
    return wish.with_remainder && partitions_.remainder_of(device, facts.device[device]) != 0;
  };
  for (const PartitionWish& wish : limits_.partitions) {
    const auto device = proto::device_named(facts, wish.device);
    const std::string what = fmt::format("Partition {} of device {}", wish.name, as_quoted(wish.device));
    if (!device) {
      log_warning("{}: there is no such device (device_query): it is not made.", what);
    } else if (partitions_.number_of(*device, wish.name) != 0) {
      log_warning("{}: there is one of that name already: it is not made again.", what);
    } else if (has_remainder(wish, *device) && partitions_.holder_of_remainder(*device) != nullptr) {
      log_warning("{}: what the device's chunks leave over is partition {}'s already (include_remainder): it is not made.", what,
                  partitions_.holder_of_remainder(*device)->name);
    } else if (const std::uint32_t number = partitions_.add(*device, wish.chunks, has_remainder(wish, *device), wish.name); number != 0) {
      log_info("{}: {} of {} chunks, {}.", what, wish.chunks, partitions_.chunks_of(*device), proto::partition_text(number));
    } else {
      log_warning("{}: {} chunks are not free, of {} that the device has (lspart): it is not made.", what, wish.chunks,
                  partitions_.chunks_of(*device));
    }
  }
}

// Commands cannot ask for more than there is, but a file and a command that came before the first server is ready may have.
void SessionManager::take_requests_back(const proto::DriverFacts& facts) {
  requests_.changed();
  for (const auto& [key, of] : namespaces_.all()) {
    const std::string fault = requests_.fault_of(key, of.thread_percentage_request);
    if (fault.empty()) continue;
    log_warning("Namespace {}: {} (namespace set --active-thread-percentage-request): nothing is kept for it.", key.second, fault);
    namespaces_.find_or_make(key)->thread_percentage_request = 0;
    requests_.changed();
  }
  const std::uint64_t wanted = namespaces_.requested_besides(nullptr);
  for (unsigned device = 0; device < facts.device_count; ++device) {
    if (wanted <= facts.device[device].total_memory_bytes) continue;
    log_warning("{} MiB are to be kept for namespaces, and device {} has {} MiB: nothing is kept (namespace set --pinned-memory-request).",
                wanted >> 20, device, facts.device[device].total_memory_bytes >> 20);
    return namespaces_.drop_requests();
  }
}

// The same. A command that comes before the first server is ready is the later word.
void SessionManager::take_default_provision() {
  for (const auto& [name, settings] : limits_.namespaces) {
    Namespace* const made = namespaces_.find_or_make({limits_.house_of(geteuid()), name});
    if (made == nullptr) continue;
    const std::uint64_t id = made->id;
    *made = settings;
    made->id = id;
    namespaces_.keep(*made);
    if (limits_.has_static_partitions && made->thread_percentage != 0)
      log_warning("Namespace {} is to have {} % of the multiprocessors, which means nothing with --static-partitioning: it is left out.", name,
                  proto::percentage_text(std::exchange(made->thread_percentage, 0)));
    if (limits_.has_static_partitions && made->thread_percentage_request != 0)
      log_warning("Multiprocessors are to be kept for namespace {}, which means nothing with --static-partitioning: they are not.", name);
    if (limits_.has_static_partitions) made->thread_percentage_request = 0;
  }
  const std::string& percentage_text = limits_.thread_percentage_text;
  const auto percentage = proto::parse_percentage(percentage_text);
  if (percentage) thread_percentages_.set_default(*percentage);
  if (limits_.has_static_partitions && percentage) {
    log_warning("Clients are to have {} % of the multiprocessors, which means nothing with --static-partitioning: it is left out.",
                proto::percentage_text(*percentage));
    thread_percentages_.set_default(proto::kWholePercentage);
  }
  if (!percentage && !percentage_text.empty())
    log_warning("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: {} is no percentage (above 0, to 100): it is left out.", as_quoted(percentage_text));
  const std::string& priority_text = limits_.client_priority_text;
  const std::optional<std::uint32_t> asked = proto::parse_client_priority(priority_text);
  const std::optional<std::uint32_t> priority = asked && *asked < limits_.client_priorities ? asked : std::nullopt;
  if (priority) default_client_priority_ = *priority;
  if (!priority && !priority_text.empty())
    log_warning("CUDA_MPS_CLIENT_PRIORITY: {} is no priority (0: normal, to {}): it is left out.", as_quoted(priority_text),
                limits_.client_priorities - 1);
}

std::uint64_t SessionManager::namespace_held(const Namespace& of, unsigned device) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (session.device == device && namespace_of(session) == &of) bytes += *session.device_held;
  }
  return bytes;
}

std::uint64_t SessionManager::own_group_of(const ClientSession& session) const {
  const Namespace* const of = namespace_of(session);
  return of != nullptr && of->has_own_executor ? of->id : 0;
}

std::uint64_t SessionManager::namespace_left(const ClientSession& session) const {
  const Namespace* const of = namespace_of(session);
  if (of == nullptr || of->memory_limit_bytes == 0) return UINT64_MAX;
  return of->memory_limit_bytes - std::min(of->memory_limit_bytes, namespace_held(*of, session.device));
}

// What the driver takes for itself is in no account, so it comes off what is kept as well as off the rest.
std::uint64_t SessionManager::others_left(const ClientSession& session) const {
  const Namespace* const own = namespace_of(session);
  const proto::DriverFacts* const known = facts();
  if (known == nullptr || namespaces_.requested_besides(own) == 0) return UINT64_MAX;
  std::uint64_t taken = chunks_.quota().held_by_all(session.device);
  for (const auto& [key, of] : namespaces_.all()) {
    if (&of == own || of.memory_request_bytes == 0) continue;
    taken += of.memory_request_bytes - std::min(of.memory_request_bytes, namespace_held(of, session.device));
  }
  const std::uint64_t total = known->device[session.device].total_memory_bytes;
  return total - std::min(total, taken);
}

SessionTerms SessionManager::terms_of(const ClientSession& session) const {
  SessionTerms terms;
  terms.device_limit_bytes = proto::lower_limit(chunks_.quota().limit(), session.memory_limit_bytes.value_or(0));
  terms.thread_percentage = session.thread_percentage.value_or(proto::kWholePercentage);
  terms.client_priority = session.client_priority.value_or(0);
  const Namespace* const of = namespace_of(session);
  if (const SmPartition* const partition = partitions_.find(session.device, session.sm_partition)) terms.chunks = partition->chunks;
  // Executors ask for sessions that have a limit. This one is none, but what is kept for others has to be asked about.
  if (facts() != nullptr && namespaces_.requested_besides(of) != 0)
    terms.device_limit_bytes = proto::lower_limit(terms.device_limit_bytes, facts()->device[session.device].total_memory_bytes);
  terms.percentage_left = requests_.percentage_left(limits_.house_of(session.client.uid), of, session.device);
  if (!limits_.has_static_partitions)
    terms.chunks = requests_.chunks_for(session, terms.thread_percentage, of != nullptr ? of->thread_percentage : 0);
  if (of == nullptr) return terms;
  terms.device_limit_bytes = proto::lower_limit(terms.device_limit_bytes, of->memory_limit_bytes);
  terms.group = of->id;
  terms.group_percentage = limits_.has_static_partitions ? 0 : of->thread_percentage;
  return terms;
}

}  // namespace mpsshim::broker::control
