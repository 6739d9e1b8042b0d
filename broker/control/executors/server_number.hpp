// SPDX-License-Identifier: Apache-2.0
// What a server is called in commands: the pid of its first life that served, or is the first to try. It stays over faults and restarts, and so does
// whatever was set for it by that number. Pids of its lives name it as well, for a while: they stand in logs, and in what was asked before.
// Owned by ManagedExecutor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <sys/types.h>

namespace mpsshim::broker::control {

class ServerNumber {
 public:
  static constexpr std::size_t kMostPids = 64;

  void begin_life(pid_t pid, bool has_served) {
    if (!has_served || number_ <= 0) number_ = pid;
    pids_.push_back(pid);
    if (pids_.size() > kMostPids) pids_.erase(pids_.begin());
  }
  void resume(pid_t number, std::vector<pid_t> pids) {
    number_ = number;
    pids_ = std::move(pids);
  }

  [[nodiscard]] pid_t number() const { return number_; }  // -1: there was no life yet
  [[nodiscard]] bool had(pid_t pid) const { return std::find(pids_.begin(), pids_.end(), pid) != pids_.end(); }
  [[nodiscard]] const std::vector<pid_t>& pids() const { return pids_; }  // the last ones, in order

 private:
  pid_t number_ = -1;
  std::vector<pid_t> pids_;
};

}  // namespace mpsshim::broker::control
