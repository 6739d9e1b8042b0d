// SPDX-License-Identifier: Apache-2.0
//
// Which block of a launch gets the next slice, and how a launch ends.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <new>

#include "broker/cpudriver/ptx/launch.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::ptx {
namespace {

// A block that has used so many slices may be waiting for one not begun yet (kernels that poll each other's blocks
// rely on several being resident): begin another beside it.
constexpr std::uint32_t kPatienceSlices = 16;
constexpr std::size_t kMaxSpareBlocks = 8;

std::string_view describe(Fault fault) {
  switch (fault) {
    case Fault::none: return "no fault";
    case Fault::invalid_value: return "invalid launch";
    case Fault::out_of_memory: return "out of memory for the block's state";
    case Fault::illegal_address: return "illegal address";
    case Fault::out_of_resources: return "too many resources asked for";
    case Fault::device_assert: return "assertion failed";
    case Fault::cooperative_too_large: return "cooperative grid too large";
    case Fault::stack_error: return "stack overflow (raise CU_LIMIT_STACK_SIZE)";
    case Fault::illegal_instruction: return "illegal instruction";
    case Fault::misaligned_address: return "misaligned address";
    case Fault::invalid_pc: return "call through a pointer that is no function's";
    case Fault::launch_failed: return "trap";
    case Fault::cancelled: return "cancelled";
  }
  return "unknown fault";
}

void end_launch(Launch& launch, Fault fault, const std::string& text) REQUIRES(launch.mutex) {
  if (launch.outcome.fault == Fault::none) {
    launch.outcome.fault = fault;
    launch.outcome.text = text;
  }
  launch.is_stopping.store(true, std::memory_order_relaxed);
}

bool is_cancelled(const Launch& launch) { return launch.hooks->cancel != nullptr && launch.hooks->cancel->load(std::memory_order_relaxed); }

// A suspended block, or a new one, or null. The mutex is released while a new block is made.
std::unique_ptr<Block> take_block(Launch& launch) REQUIRES(launch.mutex) {
  const bool may_begin = launch.next_block < launch.block_count && launch.resident_blocks < launch.resident_limit;
  const bool front_is_patient = launch.suspended.empty() || launch.suspended.front()->slices >= kPatienceSlices;
  const bool begins = may_begin && (launch.config.is_cooperative || front_is_patient);
  std::unique_ptr<Block> block;
  if (!begins) {
    if (launch.suspended.empty()) return nullptr;
    block = std::move(launch.suspended.front());
    launch.suspended.pop_front();
    return block;
  }
  const std::uint64_t number = launch.next_block++;
  ++launch.resident_blocks;
  if (!launch.spare.empty()) {
    block = std::move(launch.spare.back());
    launch.spare.pop_back();
  }
  ++launch.running_slices;
  {
    const Unlocked meanwhile(launch.mutex);
    try {
      if (block == nullptr) block = make_block(launch);
      begin_block(*block, number);
    } catch (const std::bad_alloc&) {
      block = nullptr;
    }
  }
  --launch.running_slices;
  if (block == nullptr) {
    end_launch(launch, Fault::out_of_memory,
               "Kernel '" + launch.entry->name + "': no memory for the state of a block of " + std::to_string(launch.warps_per_block) +
                   " warps; use smaller blocks");
  }
  return block;
}

}  // namespace

bool is_done(const Launch& launch) {
  if (launch.running_slices != 0) return false;
  return launch.finished_blocks == launch.block_count || launch.is_stopping.load(std::memory_order_relaxed);
}

Ran run_some(Launch& launch, Worker& worker) {
  std::unique_lock lock(launch.mutex);
  if (is_cancelled(launch) && launch.finished_blocks != launch.block_count) {
    end_launch(launch, Fault::cancelled, "Kernel '" + launch.entry->name + "' was cancelled while it ran");
  }
  if (launch.is_stopping.load(std::memory_order_relaxed)) return Ran::nothing;
  std::unique_ptr<Block> block = take_block(launch);
  if (block == nullptr) {
    launch.progress.notify_all();
    return Ran::nothing;
  }
  ++launch.running_slices;
  lock.unlock();
  const AddressMap* map = launch.hooks->memory;
  if (worker.launch != &launch || worker.view.generation != map->generation()) {
    worker.view = MemoryView{};
    worker.view.map = map;
    worker.view.generation = map->generation();
    worker.launch = &launch;
  }
  const SliceEnd end = run_slice(*block, worker);
  lock.lock();
  --launch.running_slices;
  if (end == SliceEnd::suspended || end == SliceEnd::waiting) {
    if (end == SliceEnd::waiting) block->slices += kPatienceSlices;
    launch.suspended.push_back(std::move(block));
  } else {
    for (const Warp& warp : block->warps) launch.outcome.lane_instructions += warp.lane_instructions;
    --launch.resident_blocks;
    if (end == SliceEnd::finished) ++launch.finished_blocks;
    if (launch.spare.size() < kMaxSpareBlocks) launch.spare.push_back(std::move(block));
  }
  if (is_done(launch)) launch.progress.notify_all();
  return end == SliceEnd::waiting ? Ran::waiting : Ran::working;
}

void report_fault(Launch& launch, Fault fault, const Instruction& in, std::uint64_t address, bool is_write, const Block& block, const Warp& warp) {
  const std::lock_guard lock(launch.mutex);
  if (launch.outcome.fault != Fault::none) return;
  const std::uint64_t thread = std::uint64_t{warp.index} * kLanes + static_cast<std::uint32_t>(warp.exec == 0 ? 0 : __builtin_ctz(warp.exec));
  char where[160];
  std::snprintf(where, sizeof where, " at PTX line %u, block %" PRIu64 ", near thread %" PRIu64, in.line, block.number, thread);
  std::string text = "Kernel '" + launch.entry->name + "': " + std::string(describe(fault));
  if (fault == Fault::illegal_address || fault == Fault::misaligned_address || fault == Fault::invalid_pc) {
    char number[64];
    std::snprintf(number, sizeof number, " 0x%" PRIx64 "%s", address, fault == Fault::invalid_pc ? "" : is_write ? " (write)" : " (read)");
    text += number;
  }
  launch.outcome.address = address;
  launch.outcome.is_write = is_write;
  launch.outcome.line = in.line;
  end_launch(launch, fault, text + where);
}

}  // namespace mpsshim::ptx
