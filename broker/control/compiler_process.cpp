// SPDX-License-Identifier: Apache-2.0
#include "broker/control/compiler_process.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/control/process_identity.hpp"

namespace mpsshim::broker::control {

namespace {

// Made before fork(): between fork and exec the child only makes system calls.
struct CompilerCommand {
  std::vector<std::string> words;
  std::vector<char*> argv;
  std::vector<char*> envp;
};

CompilerCommand make_compiler_command(const CompilerOptions& options) {
  CompilerCommand command;
  command.words = {"mpsbroker", "--compiler"};
  if (options.has_test_faults) command.words.emplace_back("--test-image-faults");
  if (options.dumpable) command.words.emplace_back("--dumpable");
  const std::size_t arguments = command.words.size();
  for (const char* name : {"LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) command.words.push_back(fmt::format("{}={}", name, value));
  }
  for (std::size_t i = 0; i < command.words.size(); ++i) (i < arguments ? command.argv : command.envp).push_back(command.words[i].data());
  command.argv.push_back(nullptr);
  command.envp.push_back(nullptr);
  return command;
}

[[noreturn]] void become_compiler(const CompilerCommand& command, int link) {
  if (link != kCompilerControlFd && dup2(link, kCompilerControlFd) < 0) _exit(126);
  if (link == kCompilerControlFd) fcntl(link, F_SETFD, 0);
  syscall(SYS_close_range, kCompilerControlFd + 1, ~0u, 0);
  // Something that takes whatever a library may say, so that the numbers are not given to anything else.
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(standard);
  if (open("/dev/null", O_RDWR) != 0 || dup(0) != 1 || dup(0) != 2) _exit(126);
  execve("/proc/self/exe", command.argv.data(), command.envp.data());
  _exit(127);
}

}  // namespace

std::optional<CompilerLife> CompilerProcessLauncher::launch() {
  CompilerLife life;
  auto ends = proto::Socket::pair();
  if (!ends[0].valid()) return std::nullopt;
  const CompilerCommand command = make_compiler_command(options_);
  ChildProcess child = make_child([&] { become_compiler(command, ends[1].fd()); });
  if (child.pid < 0) return std::nullopt;
  life.pid = child.pid;
  life.pidfd = std::move(child.pidfd);
  life.link = std::move(ends[0]);
  return life;
}

void CompilerProcessLauncher::kill(const CompilerLife& life) { syscall(SYS_pidfd_send_signal, life.pidfd.get(), SIGKILL, nullptr, 0); }

std::chrono::nanoseconds CompilerProcessLauncher::processor_time(const CompilerLife& life) {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(life.pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return {};  // it is our child: there until it is reaped
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

CompilerEnd CompilerProcessLauncher::reap(const CompilerLife& life) {
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(life.pid, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  if (reaped < 0) return {0, "ended"};
  if (WIFSIGNALED(status)) return {WTERMSIG(status), fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))};
  return {0, fmt::format("ended with status {}", WEXITSTATUS(status))};
}

}  // namespace mpsshim::broker::control
