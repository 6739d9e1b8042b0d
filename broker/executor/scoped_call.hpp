// SPDX-License-Identifier: Apache-2.0
// Whose driver call a thread is making. The one place where a table shared with the control process would be written, should it have to name
// the session in whose call an executor hangs. Costs two stores.
#pragma once

#include <cstdint>

namespace mpsshim::broker {

struct CallMark {
  std::uint64_t session = 0;
  const char* call = nullptr;
};
inline thread_local constinit CallMark current_call{};

class ScopedCall {
 public:
  ScopedCall(std::uint64_t session, const char* call) : previous_(current_call) { current_call = {session, call}; }
  ScopedCall(const ScopedCall&) = delete;
  ~ScopedCall() { current_call = previous_; }

 private:
  const CallMark previous_;
};

}  // namespace mpsshim::broker
