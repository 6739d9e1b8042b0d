// SPDX-License-Identifier: Apache-2.0
// A machine whose cores are all at work for somebody else: a process of ordinary priority for each core that this one may use, each of them
// spinning from construction to destruction.
#pragma once

#include <vector>

#include <sys/types.h>

namespace mpsshim::bench {

class Spinners {
 public:
  Spinners();  // throws Failure if a process cannot be made
  ~Spinners();
  Spinners(const Spinners&) = delete;
  Spinners& operator=(const Spinners&) = delete;

  [[nodiscard]] const std::vector<pid_t>& pids() const { return pids_; }

 private:
  void end();

  std::vector<pid_t> pids_;
};

}  // namespace mpsshim::bench
