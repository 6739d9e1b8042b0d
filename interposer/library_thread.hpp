// SPDX-License-Identifier: Apache-2.0
// Threads of the library's own in the program's process. No signal of the program's is delivered in them, but for those that an instruction raises:
// they touch the program's memory, and some run its functions.
#pragma once

#include <pthread.h>

namespace mpsshim::interposer {

// False: the system gives none. `joinable`: where to put its name; null: it is detached.
[[nodiscard]] bool start_library_thread(void* (*main)(void*), void* argument, pthread_t* joinable = nullptr);

}  // namespace mpsshim::interposer
