// SPDX-License-Identifier: Apache-2.0
#include "interposer/trace.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/log.hpp"
#include "proto/mutex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

void start_trace() {
  const std::string_view file = environment_value(Variable::trace);
  if (file.empty()) return;
  const std::string path = std::string(file) + "." + std::to_string(getpid());
  if (!proto::trace::start(path, program_invocation_short_name)) {
    log_line("No trace is written: %s cannot be opened (%s). MPSSHIM_TRACE names a file in a folder that this process may write to.", path.c_str(),
             std::strerror(errno));
    return;
  }
  std::atexit([] { proto::trace::finish(); });
}

// A process has a session on each of its devices.
void trace_session(std::uint64_t session) {
  if (!proto::trace::enabled()) return;
  static Mutex mutex;
  static auto& label = *new std::string;  // never destroyed: threads may attach until the process is gone
  proto::trace::instant("session", "attached", {{"session", session}});
  proto::trace::fact("session", {{"session", session}, {"client_pid", static_cast<std::uint64_t>(getpid())}, {"client_uid", getuid()}});
  const std::lock_guard lock(mutex);
  label += (label.empty() ? "session " : ", ") + std::to_string(session);
  proto::trace::label_process(label);
}

void trace_api_call(ApiId id, CUresult result, std::uint64_t began_ns) {
  proto::trace::complete("call", name_of(id), began_ns, {{"error", static_cast<std::uint64_t>(result)}});
}

}  // namespace mpsshim::interposer
