// SPDX-License-Identifier: Apache-2.0
//
// One launch while it runs: shared by the calling thread and the helpers that lend it slices. Its blocks are begun
// in order. A block whose slice is used up waits in `suspended`; more are begun beside long ones, so that kernels
// that count on several resident blocks see them. See grid.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "broker/cpudriver/ptx/device_runtime.hpp"
#include "broker/cpudriver/ptx/execution.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::ptx {

// What a thread keeps between slices.
struct Worker {
  MemoryView view;
  const Launch* launch = nullptr;  // Of the view.
};

struct Launch {
  LaunchConfig config;
  const LaunchHooks* hooks = nullptr;
  const Program* program = nullptr;
  const Function* entry = nullptr;
  const std::byte* symbol_rows = nullptr;
  std::vector<std::byte> parameters;
  std::vector<std::uint64_t> workspace;  // The grid barrier of cooperative launches; %envreg1 and 2 point there.
  Isa isa = Isa::baseline;
  std::uint64_t grid_id = 0;
  std::uint64_t block_count = 0;
  std::uint32_t warps_per_block = 0;
  std::uint32_t shared_bytes = 0;
  std::uint32_t dynamic_shared_offset = 0;
  std::uint32_t reserved_shared_offset = 0;  // kReservedSharedBytes there, if the image uses them
  std::uint32_t local_stride = 0;
  std::uint32_t resident_limit = 0;
  std::uint32_t multiprocessors = 1;

  std::atomic<bool> is_stopping{false};  // A fault or cancellation: slices end soon. Advice; truth is `outcome`.
  Mutex mutex;
  CondVar progress;  // Signalled when a block can be taken or all are done.
  std::uint64_t next_block GUARDED_BY(mutex) = 0;
  std::uint64_t finished_blocks GUARDED_BY(mutex) = 0;
  std::uint32_t resident_blocks GUARDED_BY(mutex) = 0;
  std::uint32_t running_slices GUARDED_BY(mutex) = 0;  // Threads inside a block now.
  std::deque<std::unique_ptr<Block>> suspended GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Block>> spare GUARDED_BY(mutex);
  LaunchOutcome outcome GUARDED_BY(mutex);
  Mutex print_mutex;  // Serialises LaunchHooks::print.

  DeviceRuntime* runtime = nullptr;  // Null: the image does not call it.
  PendingWork pending;               // Guarded by it.
};

// warp.cpp
inline constexpr std::uint32_t kSpinsBeforePin = 64;
void note_backward_branch(Warp& warp);

// block.cpp
// Suspended: its time was used up. Waiting: it cannot go on until another block or the host has done something.
enum class SliceEnd : std::uint8_t { finished, suspended, waiting, stopped };
[[nodiscard]] std::unique_ptr<Block> make_block(Launch& launch);  // Throws std::bad_alloc.
void begin_block(Block& block, std::uint64_t number);
[[nodiscard]] SliceEnd run_slice(Block& block, Worker& worker);

// grid.cpp
void report_fault(Launch& launch, Fault fault, const Instruction& in, std::uint64_t address, bool is_write, const Block& block, const Warp& warp);
// What one slice of some block has come to. Nothing: there is none to run (all blocks are run by others, or done). Waiting: SliceEnd::waiting.
enum class Ran : std::uint8_t { nothing, waiting, working };
Ran run_some(Launch& launch, Worker& worker);
[[nodiscard]] bool is_done(const Launch& launch) REQUIRES(launch.mutex);  // Hold the mutex.

// builtins.cpp
Flow call_builtin(Warp& warp, const Instruction& in, const CallSite& site, const Function& function);
// device_runtime_calls.cpp
Flow call_device_runtime(Warp& warp, const Instruction& in, const CallSite& site, RuntimeCall what);

}  // namespace mpsshim::ptx
