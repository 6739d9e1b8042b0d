// SPDX-License-Identifier: Apache-2.0
#include "broker/control/processes/executor_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/call_table.hpp"
#include "broker/control/base/process_identity.hpp"
#include "broker/control_messages.hpp"
#include "broker/progress_table.hpp"
#include "proto/device_facts.hpp"
#include "proto/own_library.hpp"

namespace mpsshim::broker::control {

namespace {

// Everything the child needs, made before fork(): between fork and exec it only makes system calls.
struct Command {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::vector<char*> argv;
  std::vector<char*> envp;
};

bool names_variable(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

constexpr std::string_view kLibraryPath = "LD_LIBRARY_PATH";
constexpr std::string_view kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr std::string_view kCopyConnections = "CUDA_DEVICE_MAX_COPY_CONNECTIONS";
constexpr std::string_view kModuleLoading = "CUDA_MODULE_LOADING";

// Of LD_LIBRARY_PATH what does not lead to our own library where the driver is asked for by name: mpsrun puts such a folder in front for all that it
// starts, and a broker may be among it.
std::string driver_search_path(std::string_view path) {
  constexpr std::string_view kDividers = ":;";
  std::string kept;
  bool is_first = true;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find_first_of(kDividers, begin), path.size());
    const std::string_view folder = path.substr(begin, end - begin);
    begin = end + 1;
    std::error_code error;
    const auto library = std::filesystem::canonical(std::filesystem::path(folder.empty() ? "." : folder) / "libcuda.so.1", error);
    if (!error && library.filename() == proto::kOwnLibraryFile) continue;
    if (!std::exchange(is_first, false)) kept += ':';
    kept += folder;
  }
  return kept;
}

std::vector<std::string> executor_environment(const ExecutorOptions& options) {
  std::vector<std::string> environment = driver_environment();
  environment.push_back(fmt::format("{}={}", kConnections, options.connections));
  environment.push_back(fmt::format("{}={}", kCopyConnections, options.copy_connections));
  // Else the driver loads each kernel when it is first looked up, which the load log does not repeat: code, and what variables say of where functions
  // are, would come elsewhere in the next life (docs/recovery.md, "The load log").
  environment.push_back(fmt::format("{}=EAGER", kModuleLoading));
  return environment;
}

Command make_command(const ExecutorOptions& options) {
  Command command;
  command.arguments = {"mpsbroker",
                       "--executor",
                       "--driver",
                       options.driver_path,
                       "--device",
                       std::to_string(options.device),
                       "--workers",
                       std::to_string(options.workers),
                       "--side-contexts",
                       std::to_string(options.side_contexts),
                       "--priority",
                       std::to_string(options.priority),
                       "--connections",
                       std::to_string(options.connections),
                       "--copy-connections",
                       std::to_string(options.copy_connections),
                       "--label",
                       options.label,
                       "--module-cache",
                       std::to_string(options.module_cache_mib),
                       "--test-move-ms",
                       std::to_string(options.stress.move_ms),
                       "--test-window-ms",
                       std::to_string(options.stress.window_ms),
                       "--test-gather",
                       std::to_string(options.stress.gather),
                       "--test-stock",
                       std::to_string(options.stress.stock),
                       "--latency",
                       proto::latency_word(options.latency),
                       "--patience-s",
                       std::to_string(options.patience_s),
                       "--user-log-mib",
                       std::to_string(options.user_log_mib),
                       "--device-patience-ms",
                       std::to_string(options.device_patience_ms)};
  if (!options.log_dir.empty()) command.arguments.insert(command.arguments.end(), {"--log-dir", options.log_dir});
  if (!options.journal.empty()) command.arguments.insert(command.arguments.end(), {"--journal", options.journal});
  if (!options.ready_percentages.empty()) command.arguments.insert(command.arguments.end(), {"--ready-percentages", options.ready_percentages});
  if (options.standby) command.arguments.emplace_back("--standby");
  if (options.dumpable) command.arguments.emplace_back("--dumpable");
  if (options.keeps_rights) command.arguments.emplace_back("--keep-rights");
  if (!options.opens_assertions) command.arguments.emplace_back("--fatal-assertions");
  if (options.never_compiles) command.arguments.insert(command.arguments.end(), {"--ptx-compiler", "nvjitlink"});
  if (options.is_cold) command.arguments.emplace_back("--cold");
  command.environment = executor_environment(options);
  for (std::string& argument : command.arguments) command.argv.push_back(argument.data());
  for (std::string& entry : command.environment) command.envp.push_back(entry.data());
  command.argv.push_back(nullptr);
  command.envp.push_back(nullptr);
  return command;
}

using Descriptors = std::array<int, 7>;  // -1: there is none

// Puts the descriptors where the executor looks for them. Copies above the targets first: a source may be one of the targets.
bool place_descriptors(const Descriptors& sources) {
  constexpr Descriptors kTargets{STDOUT_FILENO,       STDERR_FILENO,    kExecutorControlFd, kExecutorFactsFd,
                                 kExecutorProgressFd, kExecutorCallsFd, kExecutorCountsFd};
  Descriptors copies{};
  for (std::size_t i = 0; i < sources.size(); ++i) copies[i] = fcntl(sources[i], F_DUPFD_CLOEXEC, 10);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] < 0) {
      close(kTargets[i]);
    } else if (copies[i] < 0 || dup2(copies[i], kTargets[i]) < 0) {  // dup2 leaves close-on-exec off
      return false;
    }
  }
  return true;
}

[[noreturn]] void become_executor(const Command& command, const Descriptors& descriptors) {
  // With randomisation off module globals come back at the same addresses in the next life, after the same loads.
  const int persona = personality(0xffffffff);
  if (persona >= 0) personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE);
  if (!place_descriptors(descriptors)) _exit(126);
  // Ours are close-on-exec; what we inherited from whoever started us (a terminal, another program's lock) need not be.
  syscall(SYS_close_range, kExecutorCountsFd + 1, ~0u, 0);
  execve("/proc/self/exe", command.argv.data(), command.envp.data());
  _exit(127);
}

proto::FileDescriptor sealed_file(const char* name, std::size_t bytes) {
  proto::FileDescriptor file = proto::create_memory_file(name, bytes);
  if (file.valid() && !proto::seal(file, proto::Seal::size)) file.reset();
  return file;
}

}  // namespace

// CUDA_MPS_PIPE_DIRECTORY would make the driver look for NVIDIA's own daemon there; LD_PRELOAD may name our own stand-in for the driver.
std::vector<std::string> driver_environment() {
  // CUDA_FORCE_… would have drivers compile where machine code has been chosen for them (fatbin_choice.hpp). What a service manager is told is the
  // control process's to say.
  constexpr std::string_view kNotInherited[] = {"CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD",    kLibraryPath,     kConnections,
                                                kCopyConnections,          kModuleLoading,  "CUDA_FORCE_JIT", "CUDA_FORCE_PTX_JIT",
                                                "NOTIFY_SOCKET",           "WATCHDOG_USEC", "WATCHDOG_PID"};
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::ranges::none_of(kNotInherited, [&](std::string_view name) { return names_variable(text, name); })) environment.emplace_back(text);
  }
  if (const char* path = std::getenv(kLibraryPath.data()); path != nullptr) {
    if (const std::string kept = driver_search_path(path); !kept.empty()) environment.push_back(fmt::format("{}={}", kLibraryPath, kept));
  }
  return environment;
}

std::optional<ExecutorLife> ProcessLauncher::launch(const ExecutorOptions& options) {
  ExecutorLife life;
  auto ends = proto::Socket::pair();
  life.facts = sealed_file("mpsshim-facts", sizeof(proto::DriverFacts));
  life.progress = sealed_file("mpsshim-progress", sizeof(ProgressFile));
  life.calls = sealed_file("mpsshim-calls", sizeof(CallTable));
  if (!ends[0].valid() || !life.facts.valid() || !life.progress.valid() || !life.calls.valid()) return std::nullopt;
  life.output = proto::create_memory_file("mpsshim-output", 0);
  std::array<int, 2> errors{};
  if (!life.output.valid() || pipe2(errors.data(), O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  life.errors = proto::FileDescriptor(errors[0]);
  const proto::FileDescriptor errors_in(errors[1]);
  fcntl(errors_in.get(), F_SETFL, 0);  // the executor waits where the pipe is full
  const Command command = make_command(options);
  ChildProcess child = make_child([&] {
    become_executor(command,
                    {life.output.get(), errors_in.get(), ends[1].fd(), life.facts.get(), life.progress.get(), life.calls.get(), options.counts_file});
  });
  if (child.pid < 0) return std::nullopt;
  life.pid = child.pid;
  life.pidfd = std::move(child.pidfd);
  life.link = std::move(ends[0]);
  return life;
}

void ProcessLauncher::kill(const ExecutorLife& life) { syscall(SYS_pidfd_send_signal, life.pidfd.get(), SIGKILL, nullptr, 0); }

void ProcessLauncher::halt(const ExecutorLife& life) { syscall(SYS_pidfd_send_signal, life.pidfd.get(), SIGSTOP, nullptr, 0); }

// The kernel tells of a stop once the last thread has stopped. Nothing is taken from reap().
bool ProcessLauncher::stands_still(const ExecutorLife& life) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(life.pid), &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == life.pid;
}

std::string ProcessLauncher::reap(const ExecutorLife& life) {
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(life.pid, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  if (reaped < 0) return "ended";
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace mpsshim::broker::control
