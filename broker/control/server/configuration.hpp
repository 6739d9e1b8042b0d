// SPDX-License-Identifier: Apache-2.0
// The file of `mpsbroker -a`: what a broker begins with, in TOML and in the keys of NVIDIA's version 3, as far as they mean something here
// (docs/service.md, "A file of settings"). Whatever else is in it is a mistake that is told with its line: nothing is passed over.
// Once, in main(), before anything is made.
#pragma once

#include <string>

#include <sys/types.h>

#include "broker/control/sessions/session_limits.hpp"

namespace mpsshim::broker::control {

// Puts what the file says in the place of what the environment has said. False: `why`, and `limits` is as it was. `uid`: the broker's own user.
[[nodiscard]] bool apply_configuration(const std::string& path, uid_t uid, SessionLimits& limits, std::string& why);

}  // namespace mpsshim::broker::control
