// SPDX-License-Identifier: Apache-2.0
// Who the control process is, and what it may: mpsbroker --user, and what it gives up of its rights (broker/rights/rights.hpp).
#pragma once

#include <string>

namespace mpsshim::broker::control {

// All of this process: its user and groups, HOME, and no directory of root's in XDG_RUNTIME_DIR. Of root's capabilities CAP_SYSLOG is left (the
// kernel log), with `sees_others` CAP_SYS_PTRACE. Nothing is done where it is that user already. False: `why`; then the process may be half of it,
// and is to end.
[[nodiscard]] bool become_user(const std::string& name, bool sees_others, std::string& why);

// When the first executor has shown that executors can be had: it may execute helpers of the driver's, with what rights these need. Called by the
// main thread. What could not be given up is in the log.
void give_up_rights(const std::string& log_path);

}  // namespace mpsshim::broker::control
