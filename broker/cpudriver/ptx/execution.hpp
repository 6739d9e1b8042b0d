// SPDX-License-Identifier: Apache-2.0
//
// State of running warps and blocks. A block is executed by one thread at a time, and nothing of it lives on that
// thread's stack between slices: it can be set aside at any instruction and taken up by another thread.
//
// A warp has one current group of lanes (pc, mask, frame) and up to 31 set aside. At branches it goes on with the
// deepest frame and, in it, the lowest pc; groups that meet at the same place merge. See warp.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "broker/cpudriver/ptx/engine.hpp"
#include "broker/cpudriver/ptx/program.hpp"

namespace mpsshim::ptx {

struct Launch;
struct Block;

struct FreeBytes {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte[], FreeBytes>;
[[nodiscard]] Bytes allocate_zeroed(std::size_t bytes);  // Aligned to 64; throws std::bad_alloc.

// A call's registers. Lanes that call from the same place in the same parent frame share it: rows are disjoint by
// lane, and groups in it can merge.
struct Frame {
  Bytes owned;  // Empty for the entry's frame, which lies in the block's storage.
  std::byte* memory = nullptr;
  std::size_t capacity = 0;
  Frame* parent = nullptr;
  const Function* function = nullptr;
  std::uint32_t call_pc = 0;  // In the parent; it returns to call_pc + 1.
  std::uint32_t depth = 0;
  std::uint32_t live = 0;  // Lanes that have not returned.
  std::uint32_t local_offset = 0;
};

enum class GroupState : std::uint8_t { runnable, at_collective, at_barrier };

struct Group {
  std::uint32_t pc = 0;
  std::uint32_t mask = 0;
  Frame* frame = nullptr;
  std::uint64_t stamp = 0;  // When it was set aside; the oldest is run when others spin.
  GroupState state = GroupState::runnable;
  std::uint8_t barrier = 0;
};

enum class WarpStatus : std::uint8_t { runnable, blocked, finished, faulted };

// Ranges found in the caller's AddressMap, kept per thread and launch.
struct MemoryView {
  static constexpr std::uint32_t kCached = 4;
  const AddressMap* map = nullptr;
  std::uint64_t generation = 0;
  AddressRange ranges[kCached];
  std::uint32_t victim = 0;
};

// Windows that generic addresses reach besides the AddressMap.
enum class Window : std::uint32_t { shared, local, parameters, workspace, runtime, count_ };

struct Exchange {  // Contributions to a collective; see handlers/collectives.cpp.
  std::array<std::uint64_t, kLanes> value{};
  std::uint32_t lanes = 0;
};

struct Warp {
  std::byte* base[4] = {};
  const std::uint32_t* lists = nullptr;  // Program::lists
  std::uint32_t exec = 0;                // Lanes of the current instruction.
  std::uint32_t mask = 0;                // Lanes of the current group.
  std::uint32_t pc = 0;
  std::uint32_t stop_pc = 0xffffffff;  // A group set aside waits there.
  std::uint32_t carry = 0;             // CC.CF of each lane.
  std::uint32_t alive = 0;             // Lanes that have not exited.
  MemoryView* view = nullptr;
  AddressRange windows[static_cast<std::size_t>(Window::count_)];
  std::uint64_t local_base = 0;    // Of lane 0.
  std::uint32_t local_stride = 0;  // Bytes of local memory a thread.
  Frame* frame = nullptr;
  Block* block = nullptr;

  std::array<Group, kLanes> groups{};
  std::uint32_t group_count = 0;
  std::uint32_t pinned = 0;           // Instructions left to a group that runs out of turn.
  std::uint32_t spins = 0;            // Backward branches since the last change of group, after strong accesses.
  std::uint32_t strong_accesses = 0;  // Atomics and strong loads; a loop without any waits for nobody.
  std::uint32_t strong_at_last_branch = 0;
  bool wants_yield = false;
  std::uint64_t clock = 0;  // Stamps.
  std::uint64_t lane_instructions = 0;
  std::uint32_t counted_barriers = 0;  // Barriers that already count this warp.
  std::uint32_t cluster_arrived = 0;   // Lanes that have arrived at the cluster's barrier, which is not complete.
  std::uint32_t index = 0;             // In the block.
  std::uint32_t initial_mask = 0;
  WarpStatus status = WarpStatus::runnable;
  Frame entry_frame;
  std::vector<std::unique_ptr<Frame>> frames;  // Calls; those with live == 0 are free.
  Exchange exchange;
  std::array<std::uint32_t, kLanes> last_error{};  // cudaGetLastError() of each thread
  std::byte* special = nullptr;
};

struct Barrier {
  std::uint32_t arrived_threads = 0;  // Warps count in full.
  std::uint32_t expected = 0;         // 0: all live warps.
  std::uint32_t popc = 0;             // bar.red
  bool all = true;
  bool any = false;
};

inline constexpr std::uint32_t kBarriers = 16;
inline constexpr std::uint8_t kClusterBarrier = 16;  // Group::barrier of those that wait at barrier.cluster; not among Block::barriers.

struct Block {
  Launch* launch = nullptr;
  std::uint64_t number = 0;
  std::vector<Warp> warps;
  std::array<Barrier, kBarriers> barriers{};
  std::uint32_t live_warps = 0;
  std::uint32_t next_warp = 0;
  std::uint32_t slices = 0;
  std::uint64_t shared_base = 0;
  std::uint32_t shared_bytes = 0;
  Bytes storage;  // Frames, special rows, local and shared memory.
};

// execution_memory.cpp: the slow path of an access. True if `bytes` at `address` may be touched.
[[nodiscard]] bool find_range(MemoryView& view, std::uint64_t address, std::uint32_t bytes, bool is_write);
// warp.cpp, control.cpp
Flow run_warp(Warp& warp, std::uint32_t budget, Isa isa);
Flow raise(Warp& warp, Fault fault, const Instruction& instruction, std::uint64_t address = 0, bool is_write = false);
void set_aside(Warp& warp, std::uint32_t pc, std::uint32_t mask, Frame* frame, GroupState state, std::uint8_t barrier = 0);
Flow reschedule(Warp& warp);  // The current group competes with those set aside.
Flow next_group(Warp& warp);  // There is no current group any more.
void activate(Warp& warp, Frame* frame);
void retire_lanes(Warp& warp, std::uint32_t lanes);  // exit
// barrier.cpp
void count_stalled_warp(Warp& warp);  // All its groups wait.
void check_barriers(Block& block);
void check_cluster_barrier(Block& block);

}  // namespace mpsshim::ptx
