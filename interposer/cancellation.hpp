// SPDX-License-Identifier: Apache-2.0
// While one lives, pthread_cancel() does not end the calling thread. Calls of the driver are no cancellation points for whoever makes them, but
// what they are made of is (write, recvmsg, usleep, waits of the C++ library): the thread would be unwound with a record half posted, or through
// a destructor, which ends the program. A cancellation that comes meanwhile takes effect at the thread's next cancellation point behind the call.
// Some ten nanoseconds. Calls that are too short for that (kIsBrief in entry.hpp) have it where they leave their ordinary way.
#pragma once

#include <pthread.h>

namespace mpsshim::interposer {

class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() {
    if (before_ == PTHREAD_CANCEL_ENABLE) pthread_setcancelstate(before_, nullptr);
  }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace mpsshim::interposer
