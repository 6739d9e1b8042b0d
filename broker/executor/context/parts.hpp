// SPDX-License-Identifier: Apache-2.0
// What an executor consists of, as the issue path needs it. executor.cpp makes the parts of the input first, then one ExecutorParts, then
// the workers; it lives as long as the executor. Workers, helpers and the window's thread share it; each part says who may call it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "broker/executor/base/activity_bell.hpp"
#include "broker/executor/base/awake_waits.hpp"
#include "broker/executor/base/bulk_calls.hpp"
#include "broker/executor/base/core.hpp"
#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/base/host_clock.hpp"
#include "broker/executor/base/interrupts.hpp"
#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/base/word_writes.hpp"
#include "broker/executor/chains/chain_pool.hpp"
#include "broker/executor/chains/side_context.hpp"
#include "broker/executor/context/priority_ranks.hpp"
#include "broker/executor/context/stream_pool.hpp"
#include "broker/executor/green/green_resources.hpp"
#include "broker/executor/green/session_share.hpp"
#include "broker/executor/link/completion.hpp"
#include "broker/executor/link/device_output.hpp"
#include "broker/executor/modules/function_names.hpp"
#include "broker/executor/modules/persisting_cache.hpp"
#include "broker/executor/modules/variable_keeper.hpp"

namespace mpsshim::broker {

class ChainCache;

struct ExecutorParts : ExecutorCore {
  explicit ExecutorParts(const ExecutorInput& input);
  ExecutorParts(const ExecutorParts&) = delete;

  // Prepares what needs the driver: the kernels of our own, graphs for launches. Without the kernels launches are issued one by one,
  // and words are written by memory operations, which is logged.
  [[nodiscard]] CUresult start();

  // Work of our own, so that the first client does not wait for what the driver does at the first launch, and so that this comes before the
  // loads in every life. Failures are for later calls to find.
  void warm_up();

  // Behind start(), at the same place of every life, as all that takes device memory: makes the stream of warm_launch().
  void open_warm_stream();
  // An empty launch of the executor's own through `chains`, which are the caller's: the way through the driver is warm for the launch that is about
  // to come. After a pause of some milliseconds that way takes five to ten times as long (docs/experiments/2026-11-23-paces.md). The caller has
  // entered the gate of the quiet window. Nothing where the last one has not ended.
  void warm_launch(ChainCache& chains);

  // One more graph, as the load log says it (ChainPool::LogEntry).
  void make_graph_again(std::uint64_t logged);

  FunctionNameTable function_names;
  PriorityRanks ranks;
  StreamPool streams;
  EventPool events;
  Completion completion;
  Interrupts interrupts;
  ActivityBell bell;
  ChainPool chain_pool;
  SideContexts sides;
  DeviceOutput output;

  CUstream warm_stream = nullptr;  // of warm_launch(); null: there is none
  std::uint32_t warm_word = 0;     // of the progress table; its session is 0, so it is nobody's work
  std::atomic<std::uint32_t> warm_launches{0};

  std::atomic<std::uint64_t> chunks{0};     // of memory, of all sessions
  BulkLane bulk_lane;                       // for helpers of all sessions
  ResourceDescriptors descriptors;
  SessionShares shares;
  PersistingCache persisting_cache;

  HostClock host_clock;
  VariableKeeper variables;
  LastWriter last_writer;
  std::atomic<std::uint32_t> local_bytes_high_water{0};  // per thread, of any launch so far: a launch beyond it waits for everybody
  std::atomic<bool> engine_stalled{false};               // set by FaultWatch: see there
  std::uint32_t first_in_flight;                         // what a stream begins with: FlightLimit
  AwakeWaits awake_waits{latency, std::thread::hardware_concurrency()};
  std::atomic<bool> is_crowded{false};                   // more streams are at work than the device has connections; set by FaultWatch
  std::atomic<bool> draining{false};                     // about to be replaced: rings are read no more, what was read is issued
  std::atomic<bool> batches_refused{false};              // the driver has no batched memory operations
};

}  // namespace mpsshim::broker
