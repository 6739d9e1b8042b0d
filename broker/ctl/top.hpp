// SPDX-License-Identifier: Apache-2.0
// `mpsctl top`: asks the broker for its clients again and again, and shows what has changed meanwhile. It is mpsctl's own: the broker only answers
// ps.
#pragma once

#include <string>

#include "broker/commands/parsed_command.hpp"

namespace mpsshim::broker::ctl {

struct TopEnd {
  int status = 0;       // as mpsctl's: 1: it could not be done, 2: it could not be asked
  std::string fault{};  // why
};

// Until q is pressed, a signal comes, or it has been shown as often as was asked for. A broker that goes away ends it where there is no screen; a
// screen stays, says so, and goes on when there is one again. After SIGINT, SIGTERM or SIGHUP the terminal is put right, and the process ends by it.
[[nodiscard]] TopEnd run_top(const std::string& directory, const ParsedCommand& command);

}  // namespace mpsshim::broker::ctl
