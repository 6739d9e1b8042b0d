// SPDX-License-Identifier: Apache-2.0
// What a worker does on an order. Each task works from order.begin_ns to order.end_ns, checks its own results, and returns figures of what it
// did. Arguments are named where a task has any.
#pragma once

#include <span>
#include <vector>

#include "tests/bench/device.hpp"
#include "tests/bench/stage.hpp"

namespace mpsshim::bench {

struct Work {
  Device& device;
  const Order& order;
  const Slot& slot;  // for its `cancelled`
  Outcome& outcome;
  std::span<float> samples_us;  // for those that the parent wants one by one; empty for workers beyond kSampledWorkers

  [[nodiscard]] bool is_time_left() const { return now_ns() < order.end_ns; }
  [[nodiscard]] bool is_cancelled() const { return slot.cancelled.load(std::memory_order_acquire) == slot.ordered.load(std::memory_order_relaxed); }
};

void launch_call(Work&);     // samples: one cuLaunchKernel, in bursts of 64
void storm(Work&);           // dependent launches without a wait; argument 0: exactly so many, at once
void cluster_storm(Work&);   // the same, every other launch in a cluster; left out where the device has none
void launch_sync(Work&);     // argument 0: launches before each synchronisation
void occupy(Work&);          // arguments: blocks, threads, nanoseconds, launches before each wait (0: none)
void allocate(Work&);        // argument 0: bytes
void copy_small(Work&);      // arguments: bytes, 1 for device to host, 1 for pinned memory; samples
void copy_large(Work&);      // the same arguments; kPieces copies, each timed
void paced_sync(Work&);      // argument 0: nanoseconds from one launch + synchronisation to the next
void paused_sync(Work&);     // arguments: nanoseconds slept before each launch + synchronisation, how many; leaves samples
void paused_copy(Work&);     // the same two for copies to the host; bytes; 1 for pinned memory; leaves samples
void waited_kernel(Work&);   // arguments: nanoseconds of each kernel, how many; leaves samples: what launch + synchronisation took beyond that
void upload_steps(Work&);    // arguments: bytes uploaded in each step, nanoseconds of each of its kernels
void long_kernels(Work&);    // argument 0: nanoseconds each; two in flight, until the end
void endless_kernel(Work&);  // one kernel, until cancelled
void module_rounds(Work&);   // load, allocate, launch, free, unload
void fresh_images(Work&);    // argument 0: first number; argument 1: nanoseconds from one to the next; samples: load to first launch done
void check_only(Work&);      // one more launch, counted
void guilty(Work&);          // stores to address 0x10 at begin_ns; must see error 700
void bystander(Work&);       // 16 MiB of known content; a launch 10 ms after begin_ns, then everything must be as it was

// Median, 99th percentile and largest into the outcome. The samples are sorted.
void summarize(std::vector<double>& samples_us, Outcome& outcome);

}  // namespace mpsshim::bench
