// SPDX-License-Identifier: Apache-2.0
//
// Barriers of a block. A warp counts in full (32 threads), once, when all its groups wait: lanes that exited or wait
// elsewhere do not hold up a barrier, as on sm_70 and later.
#include "broker/cpudriver/ptx/barrier.hpp"

#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

void write_result(Warp& warp, const Group& group, const Instruction& in, const Barrier& barrier) {
  auto* d = reinterpret_cast<std::uint32_t*>(group.frame->memory + (in.d & 0x3fffffff));
  const auto kind = static_cast<BarrierKind>(in.imm);
  if (kind == BarrierKind::red_popc) {
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      if ((group.mask >> i & 1) != 0) d[i] = barrier.popc;
    }
    return;
  }
  if (kind != BarrierKind::red_and && kind != BarrierKind::red_or) return;
  const bool value = kind == BarrierKind::red_and ? barrier.all : barrier.any;
  d[0] = value ? (d[0] | group.mask) : (d[0] & ~group.mask);
  static_cast<void>(warp);
}

void release(Block& block, std::uint32_t id) {
  const Program& program = *block.launch->program;
  const std::uint32_t bit = 1U << id;
  for (Warp& warp : block.warps) {
    if ((warp.counted_barriers & bit) == 0) continue;
    warp.counted_barriers &= ~bit;
    for (std::uint32_t i = 0; i < warp.group_count; ++i) {
      Group& group = warp.groups[i];
      if (group.state != GroupState::at_barrier || group.barrier != id) continue;
      write_result(warp, group, program.code[group.pc], block.barriers[id]);
      group.state = GroupState::runnable;
      ++group.pc;
    }
    warp.status = WarpStatus::runnable;
  }
  block.barriers[id] = Barrier{};
}

}  // namespace

void count_stalled_warp(Warp& warp) {
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    const Group& group = warp.groups[i];
    if (group.state != GroupState::at_barrier || group.barrier == kClusterBarrier) continue;
    const std::uint32_t bit = 1U << group.barrier;
    if ((warp.counted_barriers & bit) != 0) continue;
    warp.counted_barriers |= bit;
    warp.block->barriers[group.barrier].arrived_threads += kLanes;
  }
}

void check_barriers(Block& block) {
  for (std::uint32_t id = 0; id < kBarriers; ++id) {
    const Barrier& barrier = block.barriers[id];
    if (barrier.arrived_threads == 0) continue;
    const std::uint32_t expected = barrier.expected != 0 ? barrier.expected : block.live_warps * kLanes;
    if (barrier.arrived_threads >= expected) release(block, id);
  }
}

// in.a: the barrier; in.b: the number of threads or none; in.c: the predicate of .red; in.imm: the BarrierKind.
Flow barrier(Warp& warp, const Instruction& in) {
  const auto lane = static_cast<std::uint32_t>(__builtin_ctz(warp.exec));
  const auto value = [&](std::uint32_t operand) {
    return reinterpret_cast<const std::uint32_t*>(warp.base[operand >> 30] + (operand & 0x3fffffff))[lane];
  };
  const std::uint32_t id = value(in.a);
  const std::uint32_t threads = in.b == kNoOperand ? 0 : value(in.b);
  if (id >= kBarriers || threads % kLanes != 0) return raise(warp, Fault::illegal_instruction, in);
  Barrier& barrier = warp.block->barriers[id];
  barrier.expected = threads;
  const auto kind = static_cast<BarrierKind>(in.imm);
  if (kind == BarrierKind::arrive) {
    // One group speaks for the warp: the one with the lowest live lane.
    if ((warp.exec & (warp.alive & (0 - warp.alive))) != 0) barrier.arrived_threads += kLanes;
    check_barriers(*warp.block);
    return Flow::next;
  }
  if (kind != BarrierKind::sync) {
    std::uint32_t p = *reinterpret_cast<const std::uint32_t*>(warp.base[in.c >> 30] + (in.c & 0x3fffffff));
    if ((in.flags & kFlagNegateC) != 0) p = ~p;
    barrier.popc += static_cast<std::uint32_t>(__builtin_popcount(p & warp.exec));
    barrier.all = barrier.all && (p & warp.exec) == warp.exec;
    barrier.any = barrier.any || (p & warp.exec) != 0;
  }
  set_aside(warp, warp.pc - 1, warp.exec, warp.frame, GroupState::at_barrier, static_cast<std::uint8_t>(id));
  warp.mask &= ~warp.exec;
  if (warp.mask != 0) return reschedule(warp);
  return next_group(warp);
}

// barrier.cluster, of a cluster of one block. It is complete when all lanes that have not exited have arrived; who has arrived waits before it
// arrives again, so a lane whose mark is gone has nothing to wait for.
void check_cluster_barrier(Block& block) {
  for (const Warp& warp : block.warps) {
    if ((warp.alive & ~warp.cluster_arrived) != 0) return;
  }
  for (Warp& warp : block.warps) {
    warp.cluster_arrived = 0;
    for (std::uint32_t i = 0; i < warp.group_count; ++i) {
      Group& group = warp.groups[i];
      if (group.state != GroupState::at_barrier || group.barrier != kClusterBarrier) continue;
      group.state = GroupState::runnable;
      ++group.pc;
      warp.status = WarpStatus::runnable;
    }
  }
}

Flow cluster_arrive(Warp& warp, const Instruction&) {
  warp.cluster_arrived |= warp.exec;
  check_cluster_barrier(*warp.block);
  return Flow::next;
}

Flow cluster_wait(Warp& warp, const Instruction&) {
  const std::uint32_t waiting = warp.exec & warp.cluster_arrived;
  if (waiting == 0) return Flow::next;
  set_aside(warp, warp.pc - 1, waiting, warp.frame, GroupState::at_barrier, kClusterBarrier);
  warp.mask &= ~waiting;
  return warp.mask != 0 ? reschedule(warp) : next_group(warp);
}

}  // namespace mpsshim::ptx
