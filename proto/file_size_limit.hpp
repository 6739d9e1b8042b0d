// SPDX-License-Identifier: Apache-2.0
// While one lives, a write or an ftruncate() of this thread beyond `ulimit -f` fails with EFBIG, as a full disk would, and no SIGXFSZ ends the
// process. The limit is meant for files on disks; the kernel asks it for memory files too.
#pragma once

#include <csignal>
#include <ctime>

namespace mpsshim::proto {

class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &signal_, &before_);  // this thread's alone, on Linux
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const timespec at_once{};
    while (sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {  // ours: the kernel sends it to the thread that writes
    }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_;
  sigset_t before_;
};

}  // namespace mpsshim::proto
