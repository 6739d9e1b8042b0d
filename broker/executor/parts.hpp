// SPDX-License-Identifier: Apache-2.0
// What an executor consists of, as the issue path needs it. executor.cpp makes the parts of the input first, then one ExecutorParts, then
// the workers; it lives as long as the executor. Workers, helpers and the window's thread share it; each part says who may call it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/activity_bell.hpp"
#include "broker/executor/bulk_calls.hpp"
#include "broker/executor/chain_pool.hpp"
#include "broker/executor/completion.hpp"
#include "broker/executor/device_output.hpp"
#include "broker/executor/event_pool.hpp"
#include "broker/executor/function_names.hpp"
#include "broker/executor/green_resources.hpp"
#include "broker/executor/host_clock.hpp"
#include "broker/executor/interrupts.hpp"
#include "broker/executor/issue_lock.hpp"
#include "broker/executor/persisting_cache.hpp"
#include "broker/executor/progress.hpp"
#include "broker/executor/scoped_call.hpp"
#include "broker/executor/side_context.hpp"
#include "broker/executor/stream_pool.hpp"
#include "broker/executor/stress.hpp"
#include "broker/executor/variable_keeper.hpp"
#include "broker/executor/word_writes.hpp"
#include "broker/progress_table.hpp"

namespace mpsshim::broker {

class ControlLink;
class FaultReporter;
class HelperPool;
class ModuleStore;
class QuietWindow;

struct ExecutorPartsInput {
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
};

struct ExecutorParts : ExecutorPartsInput {
  explicit ExecutorParts(const ExecutorPartsInput& input);
  ExecutorParts(const ExecutorParts&) = delete;

  // Prepares what needs the driver: the kernels of our own, graphs for launches. Without the kernels launches are issued one by one,
  // and words are written by memory operations, which is logged.
  [[nodiscard]] CUresult start();

  // Work of our own, so that the first client does not wait for what the driver does at the first launch, and so that this comes before the
  // loads in every life. Failures are for later calls to find.
  void warm_up();

  // One more graph, as the load log says it (ChainPool::LogEntry).
  void make_graph_again(std::uint64_t logged);

  Progress progress;
  FunctionNameTable function_names;
  StreamPool streams;
  EventPool events;
  Completion completion;
  Interrupts interrupts;
  ActivityBell bell;
  ChainPool chain_pool;
  SideContexts sides;
  DeviceOutput output;

  std::atomic<std::uint64_t> chunks{0};     // of memory, of all sessions
  BulkLane bulk_lane;                       // for helpers of all sessions
  std::atomic<unsigned> green_contexts{0};  // in the driver, of all sessions
  ResourceDescriptors descriptors;
  PersistingCache persisting_cache;

  Stress stress;
  IssueLock issue_lock;  // for what goes into streams of the executor's own context
  HostClock host_clock;
  VariableKeeper variables;
  LastWriter last_writer;
  CUfunction nop_function = nullptr;                     // nullptr: launches are not chained
  CUfunction writer_function = nullptr;                  // nullptr: words are written by memory operations
  std::atomic<std::uint32_t> local_bytes_high_water{0};  // per thread, of any launch so far: a launch beyond it waits for everybody
  std::atomic<bool> engine_stalled{false};               // set by FaultWatch: see there
  std::uint32_t first_in_flight;                         // what a stream begins with: FlightLimit
  std::atomic<bool> is_crowded{false};                   // more streams are at work than the device has connections; set by FaultWatch
  std::atomic<bool> draining{false};                     // about to be replaced: rings are read no more, what was read is issued
  std::atomic<bool> chains_refused{false};               // the driver refused a graph call that chains need
  std::atomic<bool> batches_refused{false};              // the driver has no batched memory operations
};

}  // namespace mpsshim::broker
