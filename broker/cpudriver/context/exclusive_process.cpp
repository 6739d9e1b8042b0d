// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/context/exclusive_process.hpp"

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/device/devices.hpp"

namespace mpsshim::cpudriver {
namespace {

// What the file holds. Whoever first comes after a process that ended out of order begins its teardown.
struct Mark {
  std::uint64_t held = 0;
  std::int64_t teardown_began_ms = 0;  // CLOCK_MONOTONIC
};

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

bool write_mark(int file, const Mark& mark) { return pwrite(file, &mark, sizeof mark, 0) == static_cast<ssize_t>(sizeof mark); }

// The lock is held. True if nothing is left of the process before.
bool is_torn_down(int file) {
  Mark mark;
  if (pread(file, &mark, sizeof mark, 0) != static_cast<ssize_t>(sizeof mark) || mark.held == 0) return true;
  if (mark.teardown_began_ms == 0) {
    mark.teardown_began_ms = now_ms();
    (void)write_mark(file, mark);
  }
  return now_ms() - mark.teardown_began_ms >= static_cast<std::int64_t>(Config::get().teardown_ms);
}

}  // namespace

ExclusiveProcess::~ExclusiveProcess() { release(); }

bool ExclusiveProcess::claim() {
  const Config& config = Config::get();
  if (config.exclusive.empty() || file_ >= 0) return true;
  const unsigned device = Devices::get().machine_index(Devices::get().used());
  const std::string path = device == 0 ? config.exclusive : config.exclusive + "." + std::to_string(device);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    std::fprintf(stderr, "cuda_cpu: MPSSHIM_CPU_EXCLUSIVE=%s cannot be opened; no context is made.\n", path.c_str());
    return false;
  }
  if (flock(file, LOCK_EX | LOCK_NB) == 0 && is_torn_down(file) && write_mark(file, {1, 0})) {
    file_ = file;
    return true;
  }
  close(file);
  return false;
}

void ExclusiveProcess::release() {
  if (file_ < 0) return;
  (void)write_mark(file_, {});
  close(file_);
  file_ = -1;
}

}  // namespace mpsshim::cpudriver
