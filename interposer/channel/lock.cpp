// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::interposer {

namespace {

constexpr int kLooks = 100;  // about 1 us of pauses: longer than a record takes to write
constexpr std::uint64_t kSleepUs = 20'000;
constexpr std::uint64_t kSleepUsWithoutBarrier = 500;  // a wake may be lost then

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

// A memory barrier in every thread of this process that runs. False: the kernel has none to offer.
// The first call of a process with several threads takes some 10 ms, later ones 0.3 us where the others sleep (measured, Linux 6.18).
bool barrier_in_all_threads() {
  static const bool is_registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return is_registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
}

}  // namespace

void ChannelLock::lock_contended() {
  for (int look = 0; look < kLooks; ++look) {
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
    proto::cpu_relax();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint64_t sleep_us = barrier_in_all_threads() ? kSleepUs : kSleepUsWithoutBarrier;
  while (!try_lock()) proto::futex_wait(state_, kHeld, sleep_us);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace mpsshim::interposer
