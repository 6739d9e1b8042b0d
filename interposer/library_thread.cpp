// SPDX-License-Identifier: Apache-2.0
#include "interposer/library_thread.hpp"

#include <csignal>
#include <initializer_list>

namespace mpsshim::interposer {

bool start_library_thread(void* (*main)(void*), void* argument, pthread_t* joinable) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int raised_by_instruction : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, raised_by_instruction);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pthread_t thread{};
  const bool has_started = pthread_create(&thread, nullptr, main, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!has_started) return false;
  if (joinable != nullptr) {
    *joinable = thread;
  } else {
    pthread_detach(thread);
  }
  return true;
}

}  // namespace mpsshim::interposer
