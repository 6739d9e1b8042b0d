// SPDX-License-Identifier: Apache-2.0
#include "interposer/library_thread.hpp"

#include "interposer/signals_held_back.hpp"

namespace mpsshim::interposer {

bool start_library_thread(void* (*main)(void*), void* argument, pthread_t* joinable) {
  pthread_t thread{};
  {
    const SignalsHeldBack held_back;
    if (pthread_create(&thread, nullptr, main, argument) != 0) return false;
  }
  if (joinable != nullptr) {
    *joinable = thread;
  } else {
    pthread_detach(thread);
  }
  return true;
}

}  // namespace mpsshim::interposer
