// SPDX-License-Identifier: Apache-2.0
// mpsbroker. The same binary is control process (-d, -f) and, re-executed by that with --executor, --compiler or --linker, each of its others.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "broker/arguments.hpp"
#include "broker/command_line.hpp"
#include "broker/compiler/compiler_main.hpp"
#include "broker/control/base/daemon.hpp"
#include "broker/control/base/handover.hpp"
#include "broker/control/base/service_manager.hpp"
#include "broker/control/base/user.hpp"
#include "broker/control/executors/driver_choice.hpp"
#include "broker/control/server/configuration.hpp"
#include "broker/control/server/server.hpp"
#include "broker/executor/process/executor_main.hpp"
#include "broker/linker/linker_main.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"
#include "broker/rights/rights.hpp"
#include "proto/mps_variables.hpp"
#include "proto/provision.hpp"

namespace {

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

// Exit statuses: 0: ended as it was told, or (-d) serves; 1: it cannot serve; 2: its command line cannot be understood.
int fail(const std::string& why, int status = 1) {
  std::fprintf(stderr, "mpsbroker: %s\n", why.c_str());
  return status;
}
constexpr int kUsage = 2;

// A client costs half a dozen descriptors, each of its memory chunks one.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string choose_log_directory(const Arguments& arguments) {
  if (!arguments.log_dir.empty()) return arguments.log_dir;
  const char* value = std::getenv("CUDA_MPS_LOG_DIRECTORY");
  return value == nullptr || *value == '\0' ? arguments.pipe_dir : value;
}

// A daemon leaves its working directory, so paths are settled before.
void settle_paths(Arguments& arguments) {
  std::error_code error;
  const auto absolute = [&](const std::string& path) { return std::filesystem::absolute(path, error).lexically_normal().string(); };
  arguments.pipe_dir = absolute(choose_pipe_directory(arguments.pipe_dir));
  arguments.log_dir = absolute(choose_log_directory(arguments));
  if (!arguments.configuration.empty()) arguments.configuration = absolute(arguments.configuration);
  if (arguments.driver.find('/') != std::string::npos) arguments.driver = absolute(arguments.driver);
}

// The command line this process was started with, without what a hand-over has added.
std::vector<std::string> own_arguments(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--resume" || word == "--former" || word == "--resume-failed") {
      ++i;
    } else {
      words.push_back(word);
    }
  }
  return words;
}

// Where this program was installed; what lies there now may be a newer one.
std::string own_path() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  constexpr std::string_view kGone = " (deleted)";
  if (path.ends_with(kGone)) path.resize(path.size() - kGone.size());
  return path;
}

// This program cannot take over: the one before gets everything back. Nothing of what was handed over has been touched.
int go_back(const Arguments& arguments, std::vector<std::string> words, const std::string& why) {  // `words`: its command line
  if (arguments.former < 0) return fail(why);
  words.insert(words.end(), {"--resume", std::to_string(arguments.resume), "--resume-failed", why});
  execute("/proc/self/fd/" + std::to_string(arguments.former), words, {});
  return fail(why + "; and the former program cannot be executed: " + std::strerror(errno));
}

std::string wrong_window(const Arguments& arguments) {
  return "--window " + arguments.window + " is not BEGIN-END in hexadecimal, multiples of 1 GiB, at least 3 TiB apart";
}

ServerOptions server_options(const Arguments& arguments, const Daemon& daemon, const std::string& server_log) {
  ServerOptions options;
  if (arguments.exit_when_idle >= 0) options.exit_when_idle = std::chrono::seconds(arguments.exit_when_idle);
  std::string why;  // main() has looked
  if (!arguments.metrics.empty()) options.metrics = parse_metrics_address(arguments.metrics, arguments.metrics_for_others, why);
  if (arguments.daemon) options.reopen_output = [&daemon, server_log] { daemon.redirect_output(server_log); };
  return options;
}

// The directory, and in it the socket of clients if one was passed.
bool settle_place(const Arguments& arguments, std::optional<PipeDirectory>& pipes, mpsshim::proto::FileDescriptor& passed, std::string& why) {
  pipes = PipeDirectory::claim(arguments.pipe_dir, why, arguments.all_users ? PipeDirectory::Guests::all_users : PipeDirectory::Guests::own_user);
  if (!pipes) return false;
  std::optional<mpsshim::proto::FileDescriptor> listener = take_client_listener(pipes->client_socket(), why);
  if (!listener) return false;
  passed = std::move(*listener);
  return true;
}

std::string server_log_of(const Arguments& arguments) { return arguments.log_dir + "/server.log"; }

bool open_logs(const Arguments& arguments, std::string& why) {
  std::error_code error;
  std::filesystem::create_directories(arguments.log_dir, error);
  const std::string path = logs_to_files(arguments) ? arguments.log_dir + "/control.log" : "";
  const std::string journal = journal_of(arguments);
  const auto refuse = [&](const std::string& log) {
    why = "the log " + log + " cannot be written (" + std::strerror(errno) + "): name another directory with --log-dir";
    return false;
  };
  if (!open_log({.path = path,
                 .identity = "Control",
                 .to_standard_error = !arguments.daemon,
                 .least = arguments.verbose ? LogLevel::debug : LogLevel::info,
                 .journal = journal,
                 .log = "control"})) {
    return refuse(path);
  }
  // One that takes over goes on without: its clients are to lose nothing.
  if (arguments.resume < 0 && !journal_takes("The log of mpsbroker " MPSSHIM_VERSION " begins.")) {
    why = "--log-to " + arguments.log_to + ": there is no journal at " + journal + " (" + std::strerror(errno) + "): say --log-to files";
    return false;
  }
  set_log_quota(std::uint64_t{arguments.user_log_mib} << 20);
  return !logs_to_files(arguments) || open_server_log(server_log_of(arguments)) || refuse(server_log_of(arguments));
}

// `state`: what was handed over, if anything was, by a program with the command line `former`. `words`: this one's.
int serve(const Arguments& arguments, Daemon& daemon, const std::vector<std::string>& words, const std::vector<std::string>& former,
          StateReader* state, std::optional<PipeDirectory> pipes) {
  const auto refuse = [&](const std::string& why) {
    if (state != nullptr) return go_back(arguments, former, why);
    daemon.settled(why);
    return arguments.daemon ? 1 : fail(why);
  };
  const auto window = parse_window(arguments.window);
  if (!window) return refuse(wrong_window(arguments));
  const ExecutorSettings executors = executor_settings(arguments);
  if (executors.drivers.empty()) return refuse("libcuda_cpu.so lies neither beside mpsbroker nor in its ../lib: name its path with --driver");
  std::string why;
  mpsshim::proto::FileDescriptor passed;
  if (state == nullptr && !settle_place(arguments, pipes, passed, why)) return refuse(why);
  if (!pipes) return refuse(why);
  if (!open_logs(arguments, why)) return refuse(why);
  if (arguments.priority != 0) allow_priority(arguments.priority);
  ProcessLauncher launcher;
  CompilerProcessLauncher compilers({arguments.has_image_faults, arguments.dumpable});
  LinkerProcessLauncher linkers(linker_options(arguments));
  SessionLimits limits = session_limits(arguments, *window);
  const bool is_first = state == nullptr && !arguments.configuration.empty();  // one that takes over has what was set meanwhile
  if (is_first && !apply_configuration(arguments.configuration, geteuid(), limits, why)) return refuse(why);
  // Never destroyed where it could not take over: the sockets are the former program's.
  auto server = std::make_unique<Server>(std::move(*pipes), launcher, compilers, linkers, executors, limits,
                                         server_options(arguments, daemon, server_log_of(arguments)), [&](const std::string& reason) {
                                           if (reason.empty() && !arguments.keep_rights) give_up_rights(arguments.log_dir);
                                           daemon.settled(reason.empty() ? "" : "no driver serves: " + reason);
                                         });
  server->set_continuation({own_path(), words, arguments.log_dir, arguments.driver});
  if (state == nullptr ? !server->listen(std::move(passed), why) : !server->resume(*state, arguments.resume_failed, why)) {
    if (state != nullptr) (void)server.release();
    return refuse(why);
  }
  if (state == nullptr) {
    if (arguments.daemon) daemon.redirect_output(server_log_of(arguments));
  } else if (!arguments.keep_rights) {
    give_up_rights(arguments.log_dir);
  }
  char** entry = environ;
  const std::string names = mpsshim::proto::unenforced_variables([&] { return *entry == nullptr ? std::string_view() : std::string_view(*entry++); });
  const char* const protocol = std::getenv("CUDA_MPS_PROTOCOL_VERSION");
  if (protocol != nullptr && *protocol != '\0' && std::string_view(protocol) != "2" && std::string_view(protocol) != "3")
    log_warning("CUDA_MPS_PROTOCOL_VERSION: {} is no version (2 or 3): it is left out, and commands of both are understood.", as_quoted(protocol));
  if (!names.empty()) log_warning("In this broker's environment, and without effect, for nothing enforces that yet: {}.", names);
  return server->run();
}

// In the place of another mpsbroker, in its process. Paths are what that one had settled.
int take_over(Arguments& arguments, const std::vector<std::string>& words) {
  const mpsshim::proto::FileDescriptor file(fcntl(arguments.resume, F_DUPFD_CLOEXEC, 3));
  std::string why;
  StateReader state(file, why);
  if (!state.ok()) return go_back(arguments, words, why);
  std::vector<std::string> former;
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) former.push_back(state.text());
  arguments.pipe_dir = state.text();
  mpsshim::proto::FileDescriptor lock = state.file();
  arguments.log_dir = state.text();
  arguments.driver = state.text();
  state.inherit(arguments.resume);
  if (arguments.former >= 0) state.inherit(arguments.former);
  Daemon daemon;
  return serve(arguments, daemon, words, former, &state, PipeDirectory::adopt(arguments.pipe_dir, std::move(lock)));
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_DUMPABLE, 0);  // before there is anything to be seen: see --dumpable
  Arguments arguments;
  CommandLine line("mpsbroker: executes many CUDA processes' work in one context per GPU");
  describe(line, arguments);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (arguments.handover_versions) return std::printf("handover %u %u\n", kOldestHandover, kHandoverVersion) > 0 ? 0 : 1;
  if (arguments.dumpable) prctl(PR_SET_DUMPABLE, 1);
  signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: a log that cannot grow costs lines, not clients
  if (arguments.executor) return executor_main(executor_options(arguments));
  if (arguments.linker) return linker_main(linker_options(arguments));
  if (arguments.compiler) return compiler_main({arguments.has_image_faults, arguments.dumpable});
  if (!arguments.daemon && !arguments.foreground) return fail("say -d (background) or -f (foreground); see --help", kUsage);
  if (arguments.log_to != "files" && arguments.log_to != "journald" && arguments.log_to != "both") {
    return fail("--log-to " + as_quoted(arguments.log_to) + " is none of files, journald and both", kUsage);
  }
  if (const std::string& by = arguments.ptx_compiler; by != "auto" && by != "driver" && by != "nvjitlink" && !by.starts_with('/')) {
    return fail("--ptx-compiler " + as_quoted(by) + " is none of auto, driver and nvjitlink, nor a path that begins with /", kUsage);
  }
  if (!mpsshim::proto::parse_percentages(arguments.ready_percentages)) {
    return fail("--ready-percentages " + as_quoted(arguments.ready_percentages) + " is no list of percentages below 100, such as 25,50", kUsage);
  }
  if (!arguments.ready_percentages.empty() && arguments.static_partitioning) {
    return fail("--ready-percentages means nothing with --static-partitioning: leave one of them out", kUsage);
  }
  if (!mpsshim::proto::parse_latency(arguments.latency))
    return fail("--latency " + as_quoted(arguments.latency) + " is none of low, balanced and saving", kUsage);
  if (arguments.driver.empty()) return fail("--driver is empty: name auto, cuda, cpu or the path of a library", kUsage);
  if (arguments.resume < 0 && !parse_window(arguments.window)) return fail(wrong_window(arguments), kUsage);
  if (std::string why; !arguments.metrics.empty() && !parse_metrics_address(arguments.metrics, arguments.metrics_for_others, why)) {
    return fail(why, kUsage);
  }
  raise_file_limit();
  if (std::string why; !arguments.user.empty() && !become_user(arguments.user, arguments.all_users, why)) return fail(why);
  prctl(PR_SET_DUMPABLE, arguments.dumpable ? 1 : 0);  // becoming another user may have set it
  if (arguments.daemon && has_passed_sockets()) return fail("-d leaves the sockets behind that systemd has passed: start it with -f", kUsage);
  const std::vector<std::string> words = own_arguments(argc, argv);
  if (arguments.resume >= 0) return take_over(arguments, words);
  settle_paths(arguments);
  Daemon daemon;
  if (arguments.daemon) {
    int status = 0;
    if (daemon.detach(status)) return status;
  }
  return serve(arguments, daemon, words, {}, nullptr, std::nullopt);
}
