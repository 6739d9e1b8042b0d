// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/daemon.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::broker::control {

namespace {

// The exit status of the starting process. "." says that all is well; a broker that dies says nothing, so nothing is failure.
int await_report(int fd) {
  std::string text;
  char buffer[512];
  ssize_t length = 0;
  while ((length = read(fd, buffer, sizeof buffer)) > 0 || (length < 0 && errno == EINTR)) {
    if (length > 0) text.append(buffer, static_cast<std::size_t>(length));
  }
  if (text == ".") return 0;
  std::fprintf(stderr, "mpsbroker: %s\n", text.empty() ? "ended before it could serve; see control.log" : text.c_str());
  return 1;
}

}  // namespace

bool Daemon::detach(int& exit_status) {
  syscall(SYS_close_range, 3, ~0u, 0);  // inherited: whoever started us may wait for these to be closed, or hold locks by them
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    std::fprintf(stderr, "mpsbroker: cannot go into the background (%s)\n", std::strerror(errno));
    exit_status = 1;
    return true;
  }
  const pid_t child = fork();
  if (child != 0) {
    close(ends[1]);
    exit_status = child < 0 ? 1 : await_report(ends[0]);
    return true;
  }
  close(ends[0]);
  report_ = proto::FileDescriptor(ends[1]);
  setsid();
  if (chdir("/") != 0) std::fprintf(stderr, "mpsbroker: cannot enter / (%s)\n", std::strerror(errno));
  const proto::FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  return false;
}

void Daemon::settled(const std::string& why) {
  if (!report_.valid()) return;
  const std::string text = why.empty() ? "." : why;
  if (write(report_.get(), text.data(), text.size()) < 0) return;  // nobody waits any more
  report_.reset();
}

void Daemon::redirect_output(const std::string& path) const {
  const proto::FileDescriptor file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return;
  dup2(file.get(), STDOUT_FILENO);
  dup2(file.get(), STDERR_FILENO);
}

}  // namespace mpsshim::broker::control
