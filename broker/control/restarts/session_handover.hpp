// SPDX-License-Identifier: Apache-2.0
// What of sessions, images and executors goes to another program in this process (handover.hpp), and how that one has it again. All executors have
// ended: every session waits for one, has moved away from one, or is lost. So nothing of an executor is handed over but how its driver is called and
// how many lives it has had.
// Made by SessionManager for the moment; the control process's thread. What is read comes from an earlier program of ours.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "broker/control/base/handover.hpp"
#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/executors/published_facts.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/device_chunks.hpp"
#include "broker/control/sessions/host_segments.hpp"
#include "broker/control/sessions/memory_limits.hpp"
#include "broker/control/sessions/namespaces.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control/sessions/sm_partitions.hpp"
#include "broker/control/sessions/thread_percentages.hpp"

namespace mpsshim::broker::control {

class SessionHandover {
 public:
  struct Parts {
    PublishedFacts& facts;
    SessionTable& sessions;
    HostSegments& segments;
    ImageStore& images;
    ExecutorPool& pool;
    SessionRanges& ranges;
    DeviceQuota& quota;
    FaultLedger& ledger;
    MemoryLimits& memory_limits;
    ThreadPercentages& thread_percentages;
    Namespaces& namespaces;
    SmPartitions& partitions;
    std::uint32_t& default_client_priority;
  };
  explicit SessionHandover(const Parts& parts) : parts_(parts) {}

  void save(StateWriter& state) const;
  // False: what was handed over cannot be served; `why` says why.
  [[nodiscard]] bool restore(StateReader& state, std::string& why);
  void start_executors();  // those that were there, after restore()

 private:
  struct FormerExecutor {
    ExecutorId id;
    std::uint64_t epoch = 0;
    std::string driver;
    ServerNumber number;
  };
  [[nodiscard]] static std::vector<FormerExecutor> read_executors(StateReader& state);
  using Charges = std::map<std::uint64_t, DeviceChargeRef>;  // by the number that they had
  void restore_session(StateReader& state, Charges& charges) const;
  void restore_memory(StateReader& state, ClientSession& session, Charges& charges) const;

  const Parts parts_;
  std::unique_ptr<proto::DriverFacts> facts_;
  std::vector<FormerExecutor> executors_;
};

}  // namespace mpsshim::broker::control
