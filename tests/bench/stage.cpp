// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/stage.hpp"

#include <climits>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::bench {

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) { syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0); }

void wake_all(const std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void wait_until(std::int64_t moment_ns) {
  const std::int64_t ahead = moment_ns - now_ns() - 1'000'000;
  if (ahead > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(ahead));
  while (now_ns() < moment_ns) std::this_thread::yield();
}

}  // namespace mpsshim::bench
