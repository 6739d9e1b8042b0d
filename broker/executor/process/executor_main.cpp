// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/executor_main.hpp"

#include <cerrno>
#include <cstring>

#include "broker/executor/base/thread_priority.hpp"
#include "broker/executor/base/trace.hpp"
#include "broker/executor/process/driver_areas.hpp"
#include "broker/executor/process/executor.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"
#include "broker/rights/rights.hpp"

namespace mpsshim::broker {

int executor_main(const ExecutorOptions& options) {
  open_log({.path = options.log_dir.empty() ? std::string() : options.log_dir + "/server.log",
            .identity = "Executor " + options.label,
            .to_standard_error = false,
            .least = LogLevel::info,
            .journal = options.journal,
            .log = "server"});
  set_log_quota(std::uint64_t{options.user_log_mib} << 20, 0);  // whoever it serves
  start_trace();
  // Descriptors that are under way beyond the user's limit of open files: every broker of the user has a part in it.
  if (!options.keeps_rights && !keep_capabilities({CAP_SYS_RESOURCE})) log_warning("Capabilities could not be dropped: {}", std::strerror(errno));
  set_serving_priority(options.priority);
  driver_areas::keep_in_order();
  return Executor(options).run();
}

}  // namespace mpsshim::broker
