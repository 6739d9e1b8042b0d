// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/thread_priority.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>

#include <sys/resource.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {
std::atomic<unsigned> serving_priority{0};
}

void set_serving_priority(unsigned priority) { serving_priority.store(priority, std::memory_order_relaxed); }

// With 0 for a process, Linux takes the calling thread.
void serve_before_others() {
  const int niceness = -static_cast<int>(serving_priority.load(std::memory_order_relaxed));
  if (niceness == 0 || setpriority(PRIO_PROCESS, 0, niceness) == 0) return;
  log_debug("A thread that clients wait for is as other programs' on busy processors: niceness {} is not allowed ({})", niceness,
            std::strerror(errno));
}

}  // namespace mpsshim::broker
