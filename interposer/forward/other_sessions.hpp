// SPDX-License-Identifier: Apache-2.0
// The process's sessions on other devices, one after the other (interposer/local/acting_session.hpp).
#pragma once

#include <cstdint>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

// f(index) for each session but the one that the calling thread acts for, in its name.
template <typename F>
void for_each_other_session(F&& f) {
  const std::uint32_t own = ActingSession::index(), count = has_several_sessions() ? session_count() : 0;
  for (std::uint32_t index = 0; index < count; ++index) {
    if (index == own) continue;
    const ActingSession acting(index);
    f(index);
  }
}

// Whether the acting session has begun, and is not over by a fault on its device.
[[nodiscard]] inline bool is_session_alive() { return session().is_attached() && session().look() == CUDA_SUCCESS; }

}  // namespace mpsshim::interposer::forward
