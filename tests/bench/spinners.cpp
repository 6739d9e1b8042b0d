// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/spinners.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/crowd.hpp"
#include "tests/bench/system.hpp"

namespace mpsshim::bench {

// mpsbench has one thread and makes no CUDA call itself, so its child may go on after fork().
Spinners::Spinners() {
  const pid_t parent = getpid();
  for (unsigned i = 0; i < usable_cores(0); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (getppid() == parent) {  // it may have ended before that line
        for (unsigned turn = 0; turn < 1'000'000; ++turn) asm volatile("");
      }
      _exit(0);
    }
    if (child < 0) {
      const int error = errno;
      end();
      throw Failure(std::string("no process to keep a core busy: ") + strerror(error));
    }
    pids_.push_back(child);
  }
}

Spinners::~Spinners() { end(); }

void Spinners::end() {
  for (const pid_t pid : pids_) kill(pid, SIGKILL);
  for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  pids_.clear();
}

}  // namespace mpsshim::bench
