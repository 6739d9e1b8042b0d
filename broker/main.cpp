// SPDX-License-Identifier: Apache-2.0
// mpsbroker: the command line. The same binary is control process (-d, -f) and, re-executed by that with --executor, executor process.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "broker/control/daemon.hpp"
#include "broker/control/driver_choice.hpp"
#include "broker/control/server.hpp"
#include "broker/executor/executor_main.hpp"
#include "broker/log.hpp"

namespace {

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

struct Arguments {
  bool daemon = false;
  bool foreground = false;
  bool executor = false;
  bool verbose = false;
  std::string driver = "auto";
  std::string pipe_dir;
  std::string log_dir;
  std::string window = "0x200000000000-0x500000000000";
  unsigned workers = 0;
  unsigned connections = 8;
  unsigned device = 0;
  unsigned orphan_ms = 200;
  unsigned drain_ms = 200;
  unsigned max_clients = kMaxLeases;
  unsigned executors = 2;
  unsigned idle_ms = 10'000;
  std::string label = "0";
  unsigned module_cache_mib = 1024;
  bool all_users = false;
  std::uint64_t client_host_mib = 0;
  std::uint64_t host_mib = 0;
};

void describe(CLI::App& app, Arguments& arguments) {
  auto* daemon = app.add_flag("-d,--daemon", arguments.daemon, "Run in the background; returns when the first executor is ready");
  app.add_flag("-f,--foreground", arguments.foreground, "Run in the foreground and log to standard error too")->excludes(daemon);
  app.add_option("--driver", arguments.driver, "auto (the GPU's driver, else the CPU driver), cuda, cpu, or the path of a library")->capture_default_str();
  app.add_option("--pipe-dir", arguments.pipe_dir,
                 "Directory of the sockets (default: $CUDA_MPS_PIPE_DIRECTORY, else $XDG_RUNTIME_DIR/mpsshim, else /tmp/mpsshim-<uid>)");
  app.add_option("--log-dir", arguments.log_dir, "Directory of control.log and server.log (default: $CUDA_MPS_LOG_DIRECTORY, else the pipe directory)");
  app.add_option("--workers", arguments.workers, "Threads of the executor that serve clients; 0: half the processors, 1 to 8")->capture_default_str();
  app.add_option("--connections", arguments.connections,
                 "Hardware connections of the context (CUDA_DEVICE_MAX_CONNECTIONS): more for programs that copy and record events in many streams at once; each makes an executor's start, and so recovery, 16 to 25 ms longer")
      ->check(CLI::Range(1u, 32u))->capture_default_str();
  app.add_option("--max-clients", arguments.max_clients, "Clients at a time")->check(CLI::Range(1u, kMaxLeases))->capture_default_str();
  app.add_option("--executors", arguments.executors,
                 "Executors a GPU may have: a further one serves clients that a kernel without end keeps waiting in the first")
      ->check(CLI::Range(1u, 8u))->capture_default_str();
  app.add_option("--idle-executor-ms", arguments.idle_ms, "Milliseconds after its last client that a further executor ends")->capture_default_str();
  app.add_option("--module-cache", arguments.module_cache_mib,
                 "MiB of module images that stay loaded in an executor after their last client, for the next one that loads the same")->capture_default_str();
  app.add_option("--orphan-ms", arguments.orphan_ms,
                 "Milliseconds that work of a client that is gone may run on before the executor is replaced")->capture_default_str();
  app.add_option("--drain-ms", arguments.drain_ms,
                 "Milliseconds that other clients' work is waited for before an executor is replaced")->capture_default_str();
  app.add_option("--window", arguments.window, "Address range for clients' memory, BEGIN-END in hexadecimal, multiples of 1 GiB")->capture_default_str();
  app.add_flag("--multiuser-server", arguments.all_users,
               "Serve clients of every user, not only of the broker's own; they share executors, and the pipe directory must let them in");
  app.add_option("--client-host-mib", arguments.client_host_mib,
                 "MiB of pinned and staging memory and module images for one client; 0: half the machine's memory")
      ->capture_default_str();
  app.add_option("--host-mib", arguments.host_mib, "The same for all clients together; 0: three quarters of the machine's memory")
      ->capture_default_str();
  app.add_flag("--verbose", arguments.verbose, "Log each connection");
  app.add_flag("--executor", arguments.executor)->group("");
  app.add_option("--device", arguments.device)->group("");
  app.add_option("--label", arguments.label)->group("");
  app.set_version_flag("--version", MPSSHIM_VERSION);
}

int fail(const std::string& why) {
  std::fprintf(stderr, "mpsbroker: %s\n", why.c_str());
  return 1;
}

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
  if (arguments.driver.find('/') != std::string::npos) arguments.driver = absolute(arguments.driver);
}

int serve(const Arguments& arguments, Daemon& daemon) {
  const auto refuse = [&](const std::string& why) {
    daemon.settled(why);
    return arguments.daemon ? 1 : fail(why);
  };
  const auto window = parse_window(arguments.window);
  if (!window) return refuse("--window " + arguments.window + " is not BEGIN-END in hexadecimal, multiples of 1 GiB, at least 3 TiB apart");
  ExecutorSettings executors;
  executors.drivers = drivers_to_try(arguments.driver);
  if (executors.drivers.empty()) return refuse("libcuda_cpu.so lies neither beside mpsbroker nor in its ../lib: name its path with --driver");
  std::string why;
  auto pipes = PipeDirectory::claim(arguments.pipe_dir, why);
  if (!pipes) return refuse(why);
  executors.workers = arguments.workers;
  executors.connections = arguments.connections;
  executors.module_cache_mib = arguments.module_cache_mib;
  executors.log_dir = arguments.log_dir;
  std::error_code error;
  std::filesystem::create_directories(arguments.log_dir, error);
  const std::string log_path = executors.log_dir + "/control.log";
  if (!open_log({log_path, "Control", !arguments.daemon, arguments.verbose ? LogLevel::debug : LogLevel::info})) {
    return refuse("the log " + log_path + " cannot be written (" + std::strerror(errno) + "): name another directory with --log-dir");
  }
  SessionLimits limits;
  limits.window = *window;
  limits.max_clients = arguments.max_clients;
  limits.orphan = std::chrono::milliseconds(arguments.orphan_ms);
  limits.drain = std::chrono::milliseconds(arguments.drain_ms);
  limits.pool.executors = arguments.executors;
  limits.pool.idle = std::chrono::milliseconds(arguments.idle_ms);
  limits.serves_all_users = arguments.all_users;
  if (arguments.client_host_mib != 0) limits.resources.client_host_bytes = arguments.client_host_mib << 20;
  if (arguments.host_mib != 0) limits.resources.all_host_bytes = arguments.host_mib << 20;
  ProcessLauncher launcher;
  Server server(std::move(*pipes), launcher, executors, limits, [&](const std::string& reason) {
    daemon.settled(reason.empty() ? "" : "no driver serves: " + reason);
  });
  if (!server.listen(why)) return refuse(why);
  daemon.redirect_output(executors.log_dir + "/server.log");
  return server.run();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("mpsbroker: executes many CUDA processes' work in one context per GPU");
  describe(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (arguments.executor) return executor_main({arguments.driver, arguments.device, arguments.workers, arguments.log_dir, arguments.connections, arguments.label, arguments.module_cache_mib});
  if (!arguments.daemon && !arguments.foreground) return fail("say -d (background) or -f (foreground); see --help");
  settle_paths(arguments);
  raise_file_limit();
  Daemon daemon;
  if (arguments.daemon) {
    int status = 0;
    if (daemon.detach(status)) return status;
  }
  return serve(arguments, daemon);
}
