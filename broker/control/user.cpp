// SPDX-License-Identifier: Apache-2.0
#include "broker/control/user.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "broker/rights/rights.hpp"

namespace mpsshim::broker::control {

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

}  // namespace mpsshim::broker::control
