// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <initializer_list>

namespace mpsshim::interposer {

// While one lives no handler runs in this thread, but for signals that an instruction raises, which are let through; a thread that is started
// meanwhile keeps that.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int raised_by_instruction : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, raised_by_instruction);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace mpsshim::interposer
