// SPDX-License-Identifier: Apache-2.0
#include "broker/control/processes/former_children.hpp"

#include <fstream>
#include <string>
#include <utility>

#include <sys/epoll.h>
#include <sys/wait.h>

#include "broker/control/base/process_identity.hpp"

namespace mpsshim::broker::control {

void FormerChildren::take() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {  // those that have ended
  }
  std::ifstream list("/proc/self/task/" + std::to_string(getpid()) + "/children");  // after execv() there is one thread
  for (pid_t pid = 0; list >> pid;) await(pid);
}

void FormerChildren::await(pid_t pid) {
  Child child;
  child.pidfd = open_pidfd(pid);
  if (!child.pidfd.valid()) return;
  child.end = loop_.watch(child.pidfd.get(), EPOLLIN, [this, pid](EventLoop::Events) {
    waitpid(pid, nullptr, WNOHANG);
    loop_.defer([this, pid] { children_.erase(pid); });
  });
  children_[pid] = std::move(child);
}

}  // namespace mpsshim::broker::control
