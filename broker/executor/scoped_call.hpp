// SPDX-License-Identifier: Apache-2.0
// Whose driver call a thread is making. The one place where a table shared with the control process would be written, should it have to name
// the session in whose call an executor hangs, and where driver calls enter the executor's timeline (trace.hpp). Costs two stores and a look
// at whether there is a timeline.
#pragma once

#include <cstdint>

#include "proto/trace.hpp"

namespace mpsshim::broker {

struct CallMark {
  std::uint64_t session = 0;
  const char* call = nullptr;
};
inline thread_local constinit CallMark current_call{};

class ScopedCall {
 public:
  // `amount`: what the timeline shows besides, such as {"bytes", 4096}.
  ScopedCall(std::uint64_t session, const char* call, proto::trace::Argument amount = {})
      : previous_(current_call), span_("driver", call, {"session", session}, amount) {
    current_call = {session, call};
  }
  ScopedCall(const ScopedCall&) = delete;
  ~ScopedCall() { current_call = previous_; }

 private:
  const CallMark previous_;
  const proto::trace::Span span_;
};

}  // namespace mpsshim::broker
