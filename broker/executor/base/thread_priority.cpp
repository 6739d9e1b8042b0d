// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/thread_priority.hpp"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

std::atomic<unsigned> serving_priority{0};

// The kernel's sched_attr, first version: C libraries have it, and its calls, since glibc 2.41.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of an ordinary thread: its slice
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

void ask_for_short_slices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 || attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kServingSliceNs;
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) {
    log_debug("A thread that clients wait for has slices as other programs' on busy processors ({})", std::strerror(errno));
  }
}

}  // namespace

void set_serving_priority(unsigned priority) { serving_priority.store(priority, std::memory_order_relaxed); }

// With 0 for a process, Linux takes the calling thread.
void serve_before_others() {
  const int niceness = -static_cast<int>(serving_priority.load(std::memory_order_relaxed));
  if (niceness != 0 && setpriority(PRIO_PROCESS, 0, niceness) != 0) {
    log_debug("A thread that clients wait for is as other programs' on busy processors: niceness {} is not allowed ({})", niceness,
              std::strerror(errno));
  }
  ask_for_short_slices();
}

}  // namespace mpsshim::broker
