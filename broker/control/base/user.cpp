// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/user.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "broker/rights/rights.hpp"

namespace mpsshim::broker::control {

namespace {

// Of root's capabilities, what a broker still does with them: CAP_SYS_PTRACE looks at the executables of clients, CAP_KILL, CAP_SETUID and CAP_SETGID
// are for compiler processes, which become somebody else, CAP_SYS_RESOURCE is for descriptors under way, CAP_SYSLOG for the kernel log;
// CAP_DAC_OVERRIDE for logs in a directory of somebody else's, which are opened again when a restart has put another program in its place. Other
// users have none but by --user.
bool drop_capabilities(const std::string& log_path) {
  struct stat log_dir {};
  const bool is_own = stat(log_path.c_str(), &log_dir) != 0 || log_dir.st_uid == geteuid();
  if (geteuid() != 0) return keep_capabilities({CAP_SYS_PTRACE, CAP_SYSLOG}, Heirs::programs);
  if (is_own) return keep_capabilities({CAP_SYS_PTRACE, CAP_KILL, CAP_SETUID, CAP_SETGID, CAP_SYS_RESOURCE, CAP_SYSLOG}, Heirs::programs);
  return keep_capabilities({CAP_SYS_PTRACE, CAP_KILL, CAP_SETUID, CAP_SETGID, CAP_SYS_RESOURCE, CAP_SYSLOG, CAP_DAC_OVERRIDE}, Heirs::programs);
}

}  // namespace

bool become_user(const std::string& name, bool sees_others, std::string& why) {
  errno = 0;
  const passwd* const user = getpwnam(name.c_str());
  if (user == nullptr) {
    why = fmt::format("--user {}: there is no such user{}{}", name, errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
    return false;
  }
  if (user->pw_uid == geteuid() && user->pw_uid == getuid()) return true;
  if (geteuid() != 0) {
    why = fmt::format("--user {}: only root can become somebody else, and this is uid {}", name, geteuid());
    return false;
  }
  const bool changed =
      prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0 && initgroups(name.c_str(), user->pw_gid) == 0 &&
      setresgid(user->pw_gid, user->pw_gid, user->pw_gid) == 0 && setresuid(user->pw_uid, user->pw_uid, user->pw_uid) == 0 &&
      (sees_others ? keep_capabilities({CAP_SYSLOG, CAP_SYS_PTRACE}, Heirs::programs) : keep_capabilities({CAP_SYSLOG}, Heirs::programs));
  if (!changed) {
    why = fmt::format("--user {}: {}", name, std::strerror(errno));
    return false;
  }
  setenv("HOME", user->pw_dir, 1);  // the driver keeps its cache there
  if (const char* folder = std::getenv("XDG_RUNTIME_DIR"); folder != nullptr && access(folder, W_OK) != 0) unsetenv("XDG_RUNTIME_DIR");
  return true;
}

void give_up_rights(const std::string& log_path) {
  if (!drop_capabilities(log_path)) log_warning("The control process keeps its capabilities: {}.", std::strerror(errno));
  if (!wall_in_control()) log_warning("No system calls can be refused to the control process: {}.", std::strerror(errno));
}

}  // namespace mpsshim::broker::control
