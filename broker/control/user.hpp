// SPDX-License-Identifier: Apache-2.0
// mpsbroker --user: whom a broker becomes that root has started.
#pragma once

#include <string>

namespace mpsshim::broker::control {

// All of this process: its user and groups, HOME, and no directory of root's in XDG_RUNTIME_DIR. Of root's capabilities CAP_SYSLOG is left (the
// kernel log), with `sees_others` CAP_SYS_PTRACE. Nothing is done where it is that user already. False: `why`; then the process may be half of it,
// and is to end.
[[nodiscard]] bool become_user(const std::string& name, bool sees_others, std::string& why);

}  // namespace mpsshim::broker::control
