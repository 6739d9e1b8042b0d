// SPDX-License-Identifier: Apache-2.0
// What the control process goes by with its sessions: the limits of the command line, as plain values. They do not change while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "broker/control/base/executor_id.hpp"
#include "broker/control/base/lease_table.hpp"
#include "broker/control/base/resource_limits.hpp"
#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/faults/quarantine.hpp"
#include "broker/control/images/compilers.hpp"
#include "broker/control/sessions/namespaces.hpp"

namespace mpsshim::broker::control {

using House = std::optional<uid_t>;  // SessionLimits::house_of(); nothing: all

// A static partition of a file of settings: the device as it is named there.
struct PartitionWish {
  std::string device;
  std::string name;
  unsigned chunks = 0;
  bool with_remainder = false;
};

struct SessionLimits {
  AddressWindow window;
  std::size_t max_clients = kMaxLeases;
  std::chrono::milliseconds orphan{200};     // how long work of a client that is gone may run on
  std::chrono::milliseconds drain{200};      // how long others' work is waited for before an executor is replaced
  std::chrono::milliseconds answer{30'000};  // how long a client waits for an executor: hundreds that come at once to a busy machine take many seconds
  std::chrono::milliseconds blocked{0};      // how long kernels may block all of a user's executors while somebody waits; 0: as long as they like
  std::chrono::milliseconds pause{1'000};    // how long the work of a session that is to be moved may take to end
  std::chrono::milliseconds trial{1'000};  // how long a suspect of a fault waits for what its launches show when they are run again; 0: they are not
  std::chrono::milliseconds relocate_for_tests{0};  // so often a session moves to another executor; 0: only one that starves
  QuarantineLimits quarantine;
  PoolLimits pool;
  CompilerLimits compilers;
  CompilerLimits linkers{.job = std::chrono::seconds(120)};
  std::chrono::seconds link_time{60};             // of the processor, a job
  std::chrono::milliseconds user_minute{30'000};  // of the processor's time, for a user's images in a minute; 0: no limit
  ResourceLimits resources = limits_of_this_machine();
  std::string memory_limit_text;  // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of the broker: the default for its servers
  std::string thread_percentage_text;  // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of the broker, likewise
  std::string client_priority_text;    // CUDA_MPS_CLIENT_PRIORITY of the broker, likewise
  std::vector<std::pair<std::string, Namespace>> namespaces;  // that its own user has from the beginning on (apply_configuration)
  std::vector<PartitionWish> partitions;  // that there are from the beginning on (apply_configuration); with has_static_partitions
  std::uint32_t client_priorities = 2;    // that clients may have: 0 to one less
  bool has_static_partitions = false;     // clients run in static partitions of the multiprocessors alone (SmPartitions)
  bool serves_all_users = false;  // else those of the broker's own uid
  bool spreads_newcomers = false;  // who names no device sees that with most room first
  bool shares_executors = false;  // all users are served in the same executors, in one address space

  // Who shares executors and what is kept for them: image cache, load log. kHome, or a user who shares nothing with others.
  [[nodiscard]] uid_t house_of(uid_t user) const { return !serves_all_users || shares_executors || user == geteuid() ? kHome : user; }
};

}  // namespace mpsshim::broker::control
