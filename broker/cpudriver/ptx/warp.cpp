// SPDX-License-Identifier: Apache-2.0
//
// Groups of lanes: which one runs, where they split and meet.
//
// The rule: the deepest frame first, in it the lowest pc; a group stops where another waits (stop_pc) and merges.
// That alone would hang on `while (atomicCAS(&lock, 0, 1));` within a warp, where the holder waits at a higher pc.
// So a group that keeps branching backwards with atomics or strong loads in its loop is a spinner; after
// kSpinsBeforePin such branches the group set aside longest runs out of turn for kPinnedInstructions.
#include "broker/cpudriver/ptx/execution.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::uint32_t kPinnedInstructions = 256;
constexpr std::uint32_t kNowhere = 0xffffffff;

bool runs_before(const Group& a, const Group& b) { return a.frame->depth != b.frame->depth ? a.frame->depth > b.frame->depth : a.pc < b.pc; }

void remove_group(Warp& warp, std::uint32_t index) { warp.groups[index] = warp.groups[--warp.group_count]; }

void make_current(Warp& warp, std::uint32_t index) {
  const Group chosen = warp.groups[index];
  remove_group(warp, index);
  warp.mask = chosen.mask;
  warp.pc = chosen.pc;
  if (warp.frame != chosen.frame) activate(warp, chosen.frame);
}

// Merges groups standing at the current place and finds where the next one waits.
void merge_and_set_stop(Warp& warp) {
  warp.stop_pc = kNowhere;
  for (std::uint32_t i = 0; i < warp.group_count;) {
    const Group& group = warp.groups[i];
    if (group.state == GroupState::runnable && group.frame == warp.frame) {
      if (group.pc == warp.pc) {
        warp.mask |= group.mask;
        remove_group(warp, i);
        continue;
      }
      if (group.pc > warp.pc && group.pc < warp.stop_pc) warp.stop_pc = group.pc;
    }
    ++i;
  }
}

// The current group's turn is interrupted for the one set aside longest.
void pin_oldest(Warp& warp) {
  std::uint32_t oldest = kNowhere;
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    if (warp.groups[i].state != GroupState::runnable) continue;
    if (oldest == kNowhere || warp.groups[i].stamp < warp.groups[oldest].stamp) oldest = i;
  }
  if (oldest == kNowhere) {
    warp.wants_yield = true;  // Whoever it waits for is in another warp.
    return;
  }
  set_aside(warp, warp.pc, warp.mask, warp.frame, GroupState::runnable);
  make_current(warp, oldest);
  warp.pinned = kPinnedInstructions;
  warp.stop_pc = 0;  // Makes the loop call at_stop before each instruction.
}

// Without the popcnt instruction, which the baseline lacks, the builtin is a call.
std::uint32_t count_lanes(std::uint32_t mask) {
  mask -= mask >> 1 & 0x55555555;
  mask = (mask & 0x33333333) + (mask >> 2 & 0x33333333);
  return ((mask + (mask >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

Flow at_stop(Warp& warp) {
  if (warp.pinned > 1) {
    --warp.pinned;
    return Flow::next;
  }
  warp.pinned = 0;
  return reschedule(warp);
}

}  // namespace

void activate(Warp& warp, Frame* frame) {
  warp.frame = frame;
  warp.base[static_cast<std::size_t>(Base::frame)] = frame->memory;
  auto* local = reinterpret_cast<std::uint64_t*>(warp.special + special_offset(Special::frame_local));
  if (local[0] == frame->local_offset) return;
  for (std::uint32_t i = 0; i < kLanes; ++i) local[i] = frame->local_offset;
}

void set_aside(Warp& warp, std::uint32_t pc, std::uint32_t mask, Frame* frame, GroupState state, std::uint8_t barrier) {
  warp.groups[warp.group_count++] = Group{pc, mask, frame, ++warp.clock, state, barrier};
}

Flow reschedule(Warp& warp) {
  if (warp.pinned != 0) return Flow::next;
  // Usually the current group goes on: look before moving it.
  Group current{warp.pc, warp.mask, warp.frame, 0, GroupState::runnable, 0};
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    if (warp.groups[i].state == GroupState::runnable && runs_before(warp.groups[i], current)) {
      set_aside(warp, warp.pc, warp.mask, warp.frame, GroupState::runnable);
      return next_group(warp);
    }
  }
  merge_and_set_stop(warp);
  return Flow::next;
}

Flow next_group(Warp& warp) {
  warp.pinned = 0;
  std::uint32_t best = kNowhere;
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    if (warp.groups[i].state != GroupState::runnable) continue;
    if (best == kNowhere || runs_before(warp.groups[i], warp.groups[best])) best = i;
  }
  if (best == kNowhere) {
    warp.mask = 0;
    warp.status = warp.alive == 0 ? WarpStatus::finished : WarpStatus::blocked;
    return Flow::stop;
  }
  make_current(warp, best);
  merge_and_set_stop(warp);
  return Flow::next;
}

void retire_lanes(Warp& warp, std::uint32_t lanes) {
  warp.alive &= ~lanes;
  warp.entry_frame.live &= ~lanes;
  for (auto& frame : warp.frames) frame->live &= ~lanes;
  // Collectives do not wait for exited lanes: let those who wait look again.
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    if (warp.groups[i].state == GroupState::at_collective) warp.groups[i].state = GroupState::runnable;
  }
}

void note_backward_branch(Warp& warp) {
  if (warp.strong_accesses == warp.strong_at_last_branch) return;
  warp.strong_at_last_branch = warp.strong_accesses;
  if (++warp.spins < kSpinsBeforePin || warp.pinned != 0) return;
  warp.spins = 0;
  pin_oldest(warp);
}

Flow run_warp(Warp& warp, std::uint32_t budget, Isa isa) {
  if (warp.mask == 0 && next_group(warp) == Flow::stop) return Flow::stop;
  const Instruction* const code = warp.block->launch->program->code.data();
  const auto column = static_cast<std::size_t>(isa);
  warp.wants_yield = false;
  std::uint64_t lanes = 0;
  Flow flow = Flow::next;
  for (; budget != 0 && !warp.wants_yield; --budget) {
    if (warp.pc >= warp.stop_pc && at_stop(warp) == Flow::stop) {
      flow = Flow::stop;
      break;
    }
    const Instruction& in = code[warp.pc++];
    std::uint32_t exec = warp.mask;
    if (in.guard != kNoOperand) {
      const auto* p = reinterpret_cast<const std::uint32_t*>(warp.base[0] + (in.guard & ~kGuardNegated));
      exec &= (in.guard & kGuardNegated) != 0 ? ~*p : *p;
      if (exec == 0) continue;
    }
    warp.exec = exec;
    lanes += exec == kAllLanes ? kLanes : count_lanes(exec);
    if (in.handler[column](warp, in) == Flow::stop) {
      flow = Flow::stop;
      break;
    }
  }
  warp.lane_instructions += lanes;
  return flow;
}

Flow raise(Warp& warp, Fault fault, const Instruction& in, std::uint64_t address, bool is_write) {
  warp.status = WarpStatus::faulted;
  report_fault(*warp.block->launch, fault, in, address, is_write, *warp.block, warp);
  return Flow::stop;
}

}  // namespace mpsshim::ptx
