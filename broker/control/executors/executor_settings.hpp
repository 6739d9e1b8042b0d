// SPDX-License-Identifier: Apache-2.0
// What an executor is started with, and the times it goes by.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "broker/executor/process/executor_main.hpp"

namespace mpsshim::broker::control {

// What waits to be the next life of a GPU's first executor.
enum class StandbyKind {
  none,
  cold,  // a process whose driver is initialised. On a GPU that takes one process at a time a warm one is cold, too
  warm,  // and its context made, and all loaded that the executor has loaded
};

struct ExecutorSettings {
  std::vector<std::string> drivers;  // tried in order until one serves, which is then kept
  unsigned workers = 0;
  unsigned side_contexts = 0;
  std::string ready_percentages;
  unsigned priority = 0;
  unsigned connections = ExecutorOptions{}.connections;
  unsigned copy_connections = ExecutorOptions{}.copy_connections;
  unsigned module_cache_mib = 1024;
  proto::Latency latency = ExecutorOptions{}.latency;
  unsigned patience_s = ExecutorOptions{}.patience_s;
  StressOptions stress;
  StandbyKind standby = StandbyKind::cold;
  // After the executor has become ready. By the longer one those who came back have their memory.
  std::chrono::milliseconds cold_delay{200};
  std::chrono::milliseconds warm_delay{1'000};
  std::chrono::milliseconds spare_delay{2'000};  // not while those who came back after a fault are on trial
  std::string log_dir;  // empty: no files are written
  std::string journal;  // empty: nor is the journal
  unsigned user_log_mib = 0;
  bool dumpable = false;
  bool opens_assertions = true;
  bool never_compiles = false;
  bool keeps_rights = false;  // executors are not walled in (broker/rights/rights.hpp)
  std::chrono::milliseconds start_limit{60'000};
  std::chrono::milliseconds quit_limit{1'000};
  std::chrono::milliseconds retry_delay{10'000};
  std::chrono::milliseconds hang_limit{10'000};  // of a driver call; 0: none
  // From the kernel log's word of a fault to the driver's, or there was none: an H200's driver takes up to 0.8 s.
  std::chrono::milliseconds report_limit{5'000};
  std::chrono::milliseconds standstill_limit{20};  // once it is halted: for its threads to stop
  int counts_file = -1;                            // SessionCountsFile, which all executors inherit; -1: nothing is counted
  std::chrono::milliseconds linger{400};  // of a life that has lost its context, and by which the next one serves
};

}  // namespace mpsshim::broker::control
