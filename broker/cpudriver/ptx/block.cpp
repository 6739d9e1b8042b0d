// SPDX-License-Identifier: Apache-2.0
//
// A block: its memory, its warps in turn, its end.
#include "broker/cpudriver/ptx/barrier.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

#include <bit>
#include <cstring>
#include <new>

namespace mpsshim::ptx {
namespace {

// A warp's turn: long enough to keep its registers in cache, short enough that a spinning warp costs the others
// little. A slice ends after so many instructions; at 10 to 100 ns each that is a few milliseconds at most.
constexpr std::uint32_t kWarpBudget = 2048;
constexpr std::uint32_t kSliceInstructions = 65536;
constexpr std::uint32_t kSpinningTurns = 2;

constexpr std::size_t kSpecialBytes = special_offset(Special::end_);

std::size_t aligned(std::size_t bytes) { return (bytes + 63) & ~std::size_t{63}; }

void fill(Warp& warp, Special row, std::uint32_t value) {
  auto* lanes = reinterpret_cast<std::uint32_t*>(warp.special + special_offset(row));
  for (std::uint32_t i = 0; i < kLanes; ++i) lanes[i] = value;
}
void fill64(Warp& warp, Special row, std::uint64_t value) {
  auto* lanes = reinterpret_cast<std::uint64_t*>(warp.special + special_offset(row));
  for (std::uint32_t i = 0; i < kLanes; ++i) lanes[i] = value;
}

void fill_lane_rows(Warp& warp, const Dim3& block) {
  const auto lanes = [&](Special row) { return reinterpret_cast<std::uint32_t*>(warp.special + special_offset(row)); };
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    const std::uint32_t thread = warp.index * kLanes + i;
    lanes(Special::tid_x)[i] = thread % block.x;
    lanes(Special::tid_y)[i] = thread / block.x % block.y;
    lanes(Special::tid_z)[i] = thread / block.x / block.y;
    lanes(Special::laneid)[i] = i;
    lanes(Special::lanemask_eq)[i] = 1U << i;
    lanes(Special::lanemask_lt)[i] = (1U << i) - 1;
    lanes(Special::lanemask_le)[i] = (1U << i) | ((1U << i) - 1);
    lanes(Special::lanemask_ge)[i] = ~((1U << i) - 1);
    lanes(Special::lanemask_gt)[i] = ~((1U << i) | ((1U << i) - 1));
  }
}

// Rows that do not change from block to block of a launch.
void fill_launch_rows(Warp& warp, const Launch& launch) {
  const LaunchConfig& config = launch.config;
  fill_lane_rows(warp, config.block);
  fill(warp, Special::ntid_x, config.block.x);
  fill(warp, Special::ntid_y, config.block.y);
  fill(warp, Special::ntid_z, config.block.z);
  fill(warp, Special::nctaid_x, config.grid.x);
  fill(warp, Special::nctaid_y, config.grid.y);
  fill(warp, Special::nctaid_z, config.grid.z);
  fill(warp, Special::warpid, warp.index);
  fill(warp, Special::nwarpid, 64);
  fill(warp, Special::nsmid, launch.multiprocessors);
  const auto workspace = launch.workspace.empty() ? 0 : reinterpret_cast<std::uint64_t>(launch.workspace.data());
  fill(warp, Special::envreg1, static_cast<std::uint32_t>(workspace >> 32));
  fill(warp, Special::envreg2, static_cast<std::uint32_t>(workspace));
  fill(warp, Special::dynamic_shared, launch.dynamic_shared_offset);
  fill64(warp, Special::dynamic_shared64, launch.dynamic_shared_offset);
  fill(warp, Special::total_smem_size, launch.shared_bytes);
  fill(warp, Special::dynamic_smem_size, config.dynamic_shared_bytes);
  fill(warp, Special::reserved_smem, launch.reserved_shared_offset);
  fill(warp, Special::reserved_smem_1, launch.reserved_shared_offset + kReservedSharedBytes / 2);
  fill(warp, Special::reserved_smem_end, launch.reserved_shared_offset + kReservedSharedBytes);
  fill(warp, Special::one, 1);
  fill(warp, Special::ones, kAllLanes);
  fill64(warp, Special::gridid, launch.grid_id);
}

void set_windows(Warp& warp, const Launch& launch, std::uint64_t shared_base) {
  const auto set = [&](Window which, std::uint64_t begin, std::uint64_t bytes, bool is_writable) {
    warp.windows[static_cast<std::size_t>(which)] = AddressRange{begin, begin + bytes, is_writable};
  };
  set(Window::shared, shared_base, launch.shared_bytes, true);
  set(Window::local, warp.local_base, std::uint64_t{launch.local_stride} * kLanes, true);
  set(Window::parameters, reinterpret_cast<std::uint64_t>(launch.parameters.data()), launch.parameters.size(), false);
  const auto workspace = launch.workspace.empty() ? 0 : reinterpret_cast<std::uint64_t>(launch.workspace.data());
  set(Window::workspace, workspace, launch.workspace.size() * 8, true);
  if (launch.runtime != nullptr) warp.windows[static_cast<std::size_t>(Window::runtime)] = launch.runtime->memory();
}

enum class Turn : std::uint8_t { idle, spinning, working };

// Idle: all warps wait at barriers. Spinning: all that ran wait in loops, or sleep.
Turn run_ready_warps(Block& block, std::uint32_t& spent) {
  Turn turn = Turn::idle;
  const auto count = static_cast<std::uint32_t>(block.warps.size());
  for (std::uint32_t n = 0; n < count; ++n) {
    Warp& warp = block.warps[(block.next_warp + n) % count];
    if (warp.status != WarpStatus::runnable) continue;
    const std::uint64_t before = warp.lane_instructions;
    const Flow flow = run_warp(warp, kWarpBudget, block.launch->isa);
    spent += static_cast<std::uint32_t>((warp.lane_instructions - before) / kLanes) + 64;
    if (warp.status == WarpStatus::faulted) return Turn::working;
    const bool is_spinning = flow == Flow::next && warp.wants_yield;
    turn = is_spinning && turn != Turn::working ? Turn::spinning : Turn::working;
    if (flow == Flow::stop && warp.status == WarpStatus::finished) --block.live_warps;
    if (warp.status == WarpStatus::blocked) count_stalled_warp(warp);
    if (flow == Flow::stop) check_barriers(block);
    if (flow == Flow::stop) check_cluster_barrier(block);
  }
  return turn;
}

// Blocks go round the multiprocessors that there are for the grid.
std::uint32_t smid_of(const Launch& launch, std::uint64_t number) {
  std::uint64_t mask = launch.config.multiprocessors;
  if (mask == 0) return static_cast<std::uint32_t>(number % launch.multiprocessors);
  for (std::uint64_t skip = number % static_cast<unsigned>(std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
  return static_cast<std::uint32_t>(std::countr_zero(mask));
}

}  // namespace

Bytes allocate_zeroed(std::size_t bytes) {
  const std::size_t size = aligned(bytes == 0 ? 1 : bytes);
  Bytes memory(static_cast<std::byte*>(std::aligned_alloc(64, size)));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory.get(), 0, size);
  return memory;
}

std::unique_ptr<Block> make_block(Launch& launch) {
  auto block = std::make_unique<Block>();
  const std::size_t frame_bytes = aligned(launch.entry->frame_bytes);
  const std::size_t local_bytes = std::size_t{launch.local_stride} * kLanes;
  const std::size_t warp_bytes = frame_bytes + aligned(kSpecialBytes) + local_bytes;
  const std::size_t shared_bytes = aligned(launch.shared_bytes);
  block->storage = allocate_zeroed(shared_bytes + warp_bytes * launch.warps_per_block);
  block->launch = &launch;
  block->shared_bytes = launch.shared_bytes;
  block->shared_base = reinterpret_cast<std::uint64_t>(block->storage.get());
  block->warps.resize(launch.warps_per_block);
  const Dim3& size = launch.config.block;
  const std::uint32_t threads = size.x * size.y * size.z;
  std::byte* memory = block->storage.get() + shared_bytes;
  for (std::uint32_t i = 0; i < launch.warps_per_block; ++i, memory += warp_bytes) {
    Warp& warp = block->warps[i];
    warp.index = i;
    warp.block = block.get();
    warp.initial_mask = threads - i * kLanes >= kLanes ? kAllLanes : (1U << (threads - i * kLanes)) - 1;
    warp.entry_frame.memory = memory;
    warp.entry_frame.function = launch.entry;
    warp.special = memory + frame_bytes;
    warp.local_base = reinterpret_cast<std::uint64_t>(memory + frame_bytes + aligned(kSpecialBytes));
    warp.local_stride = launch.local_stride;
    warp.lists = launch.program->lists.data();
    warp.base[static_cast<std::size_t>(Base::constants)] = launch.program->constant_rows;
    warp.base[static_cast<std::size_t>(Base::special)] = warp.special;
    warp.base[static_cast<std::size_t>(Base::symbols)] = const_cast<std::byte*>(launch.symbol_rows);
    fill_launch_rows(warp, launch);
    set_windows(warp, launch, block->shared_base);
  }
  return block;
}

void begin_block(Block& block, std::uint64_t number) {
  const Launch& launch = *block.launch;
  const Dim3& grid = launch.config.grid;
  block.number = number;
  block.slices = 0;
  block.next_warp = 0;
  block.barriers = {};
  block.live_warps = launch.warps_per_block;
  if (launch.program->uses_reserved_shared) {
    std::memset(block.storage.get() + launch.reserved_shared_offset, 0, kReservedSharedBytes);
  }
  for (Warp& warp : block.warps) {
    warp.entry_frame.live = warp.alive = warp.mask = warp.initial_mask;
    warp.pc = launch.entry->entry_pc;
    warp.stop_pc = 0xffffffff;
    warp.group_count = warp.pinned = warp.spins = warp.counted_barriers = 0;
    warp.status = WarpStatus::runnable;
    warp.carry = 0;
    warp.lane_instructions = 0;
    warp.last_error = {};
    warp.cluster_arrived = 0;
    activate(warp, &warp.entry_frame);
    fill(warp, Special::ctaid_x, static_cast<std::uint32_t>(number % grid.x));
    fill(warp, Special::ctaid_y, static_cast<std::uint32_t>(number / grid.x % grid.y));
    fill(warp, Special::ctaid_z, static_cast<std::uint32_t>(number / grid.x / grid.y));
    fill(warp, Special::smid, smid_of(launch, number));
  }
}

SliceEnd run_slice(Block& block, Worker& worker) {
  Launch& launch = *block.launch;
  for (Warp& warp : block.warps) warp.view = &worker.view;
  const std::atomic<bool>* cancel = launch.hooks->cancel;
  ++block.slices;
  std::uint32_t spins = 0;
  for (std::uint32_t spent = 0; spent < kSliceInstructions;) {
    if (launch.is_stopping.load(std::memory_order_relaxed)) return SliceEnd::stopped;
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return SliceEnd::stopped;
    const Turn turn = run_ready_warps(block, spent);
    block.next_warp = (block.next_warp + 1) % static_cast<std::uint32_t>(block.warps.size());
    if (block.live_warps == 0) return SliceEnd::finished;
    spins = turn == Turn::spinning ? spins + 1 : 0;
    // A barrier that nobody completes (only a cancellation ends it), or a wait for another block or the host.
    if (turn == Turn::idle || spins == kSpinningTurns) return SliceEnd::waiting;
  }
  return SliceEnd::suspended;
}

}  // namespace mpsshim::ptx
