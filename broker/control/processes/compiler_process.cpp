// SPDX-License-Identifier: Apache-2.0
#include "broker/control/processes/compiler_process.hpp"

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
#include "broker/control/base/process_identity.hpp"
#include "broker/control/processes/executor_process.hpp"

namespace mpsshim::broker::control {

namespace {

// Made before fork(): between fork and exec the child only makes system calls.
struct CommandLines {
  explicit CommandLines(CompilerCommand& command) {
    for (std::string& word : command.arguments) argv.push_back(word.data());
    for (std::string& entry : command.environment) envp.push_back(entry.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
  std::vector<char*> argv;
  std::vector<char*> envp;
};

[[noreturn]] void become_compiler(const CommandLines& command, int link) {
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

CompilerCommand CompilerProcessLauncher::command(unsigned) const {
  CompilerCommand command{{"mpsbroker", "--compiler"}, {}};
  if (options_.has_test_faults) command.arguments.emplace_back("--test-image-faults");
  if (options_.dumpable) command.arguments.emplace_back("--dumpable");
  for (const char* name : {"LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) command.environment.push_back(fmt::format("{}={}", name, value));
  }
  return command;
}

CompilerCommand LinkerProcessLauncher::command(unsigned device) const {
  CompilerCommand command{{"mpsbroker", "--linker", "--driver", options_.driver_path, "--device", std::to_string(device), "--link-s",
                           std::to_string(options_.job_time.count()), "--ptx-compiler", options_.ptx_compiler},
                          driver_environment()};
  if (options_.has_test_faults) command.arguments.emplace_back("--test-image-faults");
  if (options_.keeps_rights) command.arguments.emplace_back("--keep-rights");
  if (options_.dumpable) command.arguments.emplace_back("--dumpable");
  // Whoever takes the process over writes nothing there that an executor would load. In front of what the environment may say about it.
  command.environment.emplace(command.environment.begin(), "CUDA_CACHE_DISABLE=1");
  return command;
}

std::optional<CompilerLife> CompilerProcessLauncher::launch(unsigned device) {
  CompilerLife life;
  auto ends = proto::Socket::pair();
  if (!ends[0].valid()) return std::nullopt;
  CompilerCommand words = command(device);
  const CommandLines lines(words);
  ChildProcess child = make_child([&] { become_compiler(lines, ends[1].fd()); });
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
