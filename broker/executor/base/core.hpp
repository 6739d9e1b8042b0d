// SPDX-License-Identifier: Apache-2.0
// What graphs for chains, green and side contexts need of their executor: what executor.cpp made first, and what is shared below the streams.
// ExecutorParts is one, and made of those that take it. It lives as long as the executor; each part says who may call it.
#pragma once

#include <atomic>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/awake_waits.hpp"
#include "broker/executor/base/core_pressure.hpp"
#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/base/progress.hpp"
#include "broker/executor/base/stress.hpp"
#include "broker/progress_table.hpp"
#include "broker/session_counts.hpp"

namespace mpsshim::broker {

class ControlLink;
class FaultReporter;
class HelperPool;
class ModuleStore;
class QuietWindow;

struct ExecutorInput {
  const Driver& driver;
  ControlLink& control;
  QuietWindow& window;
  ModuleStore& modules;
  const FaultReporter& faults;
  HelperPool& helpers;
  CUcontext context = nullptr;
  CUdevice device = 0;
  ProgressTable& progress_table;
  CUdeviceptr progress_address = 0;  // of the table, as the GPU sees it
  FunctionNames& names;
  unsigned connections = 1;    // of the device to the context
  unsigned side_contexts = 0;  // at most, of the second worker, the third, ...
  StressOptions stress_options = {};
  SessionCountsFile* counts_file = nullptr;  // null: nothing is counted
  proto::Latency latency = proto::Latency::balanced;
};

struct ExecutorCore : ExecutorInput {
  explicit ExecutorCore(const ExecutorInput& input)
      : ExecutorInput(input), progress(input.progress_table, input.progress_address), counts(input.counts_file), stress(input.stress_options) {}
  ExecutorCore(const ExecutorCore&) = delete;

  Progress progress;
  SessionCountsView counts;
  Stress stress;
  CorePressure pressure;
  IssueLock issue_lock;                     // for what goes into streams of the executor's own context
  CUfunction nop_function = nullptr;        // nullptr: launches are not chained
  CUfunction reset_function = nullptr;      // empty like nop_function, in clusters of one block; nullptr: no node has had a cluster
  CUfunction writer_function = nullptr;     // nullptr: words are written by memory operations
  bool has_chained_clusters = false;        // chains take launches with a cluster; found out at the start: cluster_trial.hpp
  bool has_clustered_nodes = false;         // and a client's node may be given the cluster that its function has
  std::atomic<bool> chains_refused{false};  // the driver refused a graph call that chains need
  std::atomic<unsigned> green_contexts{0};  // in the driver, of all sessions
};

}  // namespace mpsshim::broker
