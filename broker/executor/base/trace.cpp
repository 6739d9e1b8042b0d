// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/trace.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "broker/log.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

void start_trace() {
  const char* file = std::getenv("MPSSHIM_TRACE");
  if (file == nullptr || *file == '\0') return;
  const std::string path = std::string(file) + ".executor." + std::to_string(getpid());
  if (proto::trace::start(path, "mpsbroker executor")) return;
  log_warning("No trace is written: {} cannot be opened (errno {}). MPSSHIM_TRACE names a file in a folder that mpsbroker may write to", path, errno);
}

}  // namespace mpsshim::broker
