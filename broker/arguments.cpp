// SPDX-License-Identifier: Apache-2.0
#include "broker/arguments.hpp"

#include <cstdlib>

#include "broker/control/executors/driver_choice.hpp"
#include "broker/journal.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker {

using namespace control;

namespace {

void describe_service(CommandLine& line, Arguments& arguments) {
  line.flag("-d,--daemon", arguments.daemon, "Run in the background; returns when the first executor is ready");
  line.flag("-f,--foreground", arguments.foreground, "Run in the foreground and log to standard error too", "--daemon");
  line.option("-a,--apply", &arguments.configuration,
              "File of TOML with what the broker begins with: settings of its servers and namespaces, in the keys of NVIDIA's version 3. It comes "
              "before CUDA_MPS_ variables, and is read once: what commands change is not written back, and a restart keeps it");
  line.flag(
      "-S,--static-partitioning", arguments.static_partitioning,
      "Clients run in static partitions of the multiprocessors, which are their clients' alone: mpsctl sm_partition makes them, "
      "CUDA_MPS_SM_PARTITION of a client names one. Who names none gets no context (CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION), and percentages "
      "mean nothing. Needs a driver of CUDA 12.4");
  line.option("-p,--protocol", &arguments.protocol,
              "As NVIDIA has it, 2 or 3: without effect, since commands of both versions are understood at any time", CommandLine::Range{2u, 3u});
  line.option("--driver", &arguments.driver, "auto (the GPU's driver, else the CPU driver), cuda, cpu, or the path of a library");
  line.option("--pipe-dir", &arguments.pipe_dir,
              "Directory of the sockets (default: $CUDA_MPS_PIPE_DIRECTORY, else root's /run/mpsshim, another user's $XDG_RUNTIME_DIR/mpsshim, else "
              "/tmp/mpsshim-<uid>)");
  line.option("--exit-when-idle", &arguments.exit_when_idle,
              "Seconds after which the broker ends when no program uses it, nor any process that holds it (mpsctl hold) lives; -1: never");
  line.option("--log-dir", &arguments.log_dir, "Directory of control.log and server.log (default: $CUDA_MPS_LOG_DIRECTORY, else the pipe directory)");
  line.option(
      "--log-to", &arguments.log_to,
      "files, journald (systemd's journal, by its socket; lines that it does not take at once are lost, and counted), or both. What libraries of "
      "a broker in the background print by themselves is in server.log in any case");
  line.option(
      "--metrics", &arguments.metrics,
      "Where figures for Prometheus are to be had by HTTP, at /metrics: a loopback port (9400, 127.0.0.1:9400, [::1]:9400), which every user of the "
      "machine can read, or the whole path of a Unix socket, which only the broker's user and root can; without it nowhere");
  line.flag("--metrics-for-others", arguments.metrics_for_others,
            "--metrics may name an address that other machines reach: whoever does can read which processes and users there are, and what they do");
  line.option("--workers", &arguments.workers, "Threads of the executor that serve clients; 0: half the processors, 1 to 8");
  line.option("--side-contexts", &arguments.side_contexts,
              "At most so many workers besides the first get a driver context of their own, over which clients spread that wait after every few "
              "launches, once there are more than two of them; some 12 MiB of GPU memory each",
              CommandLine::Range{0u, 7u});
  line.option("--ready-percentages", &arguments.ready_percentages,
              "Active thread percentages, by commas (25,50), for which parts of the device are made ready at an executor's start: a client that is "
              "changed to one of them has it at once, also beside kernels that run long, which the making of a part waits for. 4 to 6 MiB of GPU "
              "memory (H100) and some prepared graphs for each part: as many as lie side by side, two of more than half of the device; 64 at most");
  line.option("--priority", &arguments.priority,
              "How far the executors' threads that clients wait for come before other programs on busy processors: their niceness below 0. Without "
              "effect where neither RLIMIT_NICE nor the right to raise it (CAP_SYS_RESOURCE) allows it; 0: as other programs",
              CommandLine::Range{0u, 20u});
  line.option("--connections", &arguments.connections,
              "Hardware connections of the context (CUDA_DEVICE_MAX_CONNECTIONS): how many streams may have kernels and events under way without "
              "waiting for each other; each makes an executor's start, and so recovery, some 5 to 10 ms longer",
              CommandLine::Range{1u, 32u});
  line.option("--copy-connections", &arguments.copy_connections,
              "The same for copies (CUDA_DEVICE_MAX_COPY_CONNECTIONS); each makes an executor's start some 6 to 14 ms longer",
              CommandLine::Range{1u, 32u});
  line.option("--max-clients", &arguments.max_clients, "Clients at a time; one on several devices counts once", CommandLine::Range{1u, kMaxLeases});
  line.flag("--spread", arguments.spread,
            "Programs that name no device (CUDA_VISIBLE_DEVICES) see that one first which has most room, by clients' memory and time on it, then the "
            "next, and each keeps its order for life. Not ranks of launchers, which choose by their number (mpsrun --device local), nor children of "
            "a program that has an order: they have its. Not for programs that start others, hand out numbers of devices, and do not use CUDA "
            "themselves: set CUDA_VISIBLE_DEVICES for those. Without, all see the devices in the broker's order");
}

void describe_executors(CommandLine& line, Arguments& arguments) {
  line.option("--executors", &arguments.executors,
              "Executors a GPU may have for each user: further ones serve clients that a kernel without end keeps waiting in the first, and programs "
              "in quarantine or on probation",
              CommandLine::Range{1u, 8u});
  line.option("--idle-executor-ms", &arguments.idle_ms, "Milliseconds after its last client that a further executor ends");
  line.option("--idle-compiler-ms", &arguments.idle_compiler_ms,
              "Milliseconds after its last image that a user's compiler process ends, which reads what clients load");
  line.option(
      "--idle-linker-ms", &arguments.idle_linker_ms,
      "Milliseconds after its last job that a user's linker process ends, which compiles and links PTX for its clients; it takes a context on the "
      "GPU (about half a GiB on an H200). One that is wanted again soon after its end is kept twice as long the next time");
  line.option("--most-idle-linker-ms", &arguments.most_idle_linker_ms,
              "Milliseconds that it is kept at most: its start and its end hold up all clients' driver calls for tens of milliseconds");
  line.option("--link-s", &arguments.link_s,
              "Seconds of the processor that compiling and linking the PTX of one image may take, and half of what it may take on the clock");
  line.option(
      "--ptx-compiler", &arguments.ptx_compiler,
      "What compiles and links PTX in that process. driver: NVIDIA's driver, in a context. nvjitlink, or the path of a libnvJitLink.so: a CUDA "
      "Toolkit's library of the driver's CUDA version or a later one of the same major version, without a context. auto: nvjitlink on GPUs "
      "that take one process at a time (compute mode EXCLUSIVE_PROCESS), where without one the executor compiles itself; else driver");
  line.option("--blocked-s", &arguments.blocked_s,
              "Seconds that kernels without end may block all executors of a user, two or more, while another client's call waits: then the client "
              "whose program blocks most of them, of several the last, gets CUDA_ERROR_LAUNCH_TIMEOUT; 0: as long as they run");
  line.option("--quarantine-faults", &arguments.quarantine_faults,
              "Faults of a program (by its executable's content, its user and its first arguments) within --quarantine-s that put it in quarantine: "
              "its next clients get an executor of their own. So many different ones of an executable, or executables of a user, put all of them "
              "there; 0: never");
  line.option("--quarantine-s", &arguments.quarantine_s, "Seconds without a fault after which a program leaves quarantine",
              CommandLine::Range{1u, 1'000'000u});
  line.option("--quarantine-executors", &arguments.quarantine_executors,
              "Of --executors at most so many serve programs in quarantine; the others are for everybody else", CommandLine::Range{1u, 7u});
  line.option("--probation-s", &arguments.probation_s,
              "Seconds that a program which the broker does not know yet is served by another executor than the others, so that a fault of it is "
              "felt by other new programs alone; then its clients go to the others, where what they have can. Also known is whose client has "
              "ended without an error, until the program faults. 0: new programs are served among the others",
              CommandLine::Range{0u, 1'000'000u});
  line.option("--module-cache", &arguments.module_cache_mib,
              "MiB of module images, with their variables, that stay loaded in an executor after their last client, for the next one that loads "
              "the same");
  line.option(
      "--latency", &arguments.latency,
      "How clients wait for the GPU where there are cores to spare. saving: they sleep after 50 us and hear of a kernel's end 30 to 140 us late. "
      "balanced: they stay awake for up to 50 ms, on cores that nobody else wants, as long as those at work are few. low: for up to a second, "
      "however many they are");
  line.option("--patience-s", &arguments.patience_s,
              "Seconds that a call which has to wait for every kernel's end, such as a module's load, waits for another client's kernel where its "
              "own cannot be served by another executor; then it fails with CUDA_ERROR_MPS_SERVER_NOT_READY; 0: as long as it takes");
  line.flag("--fatal-assertions", arguments.fatal_assertions,
            "A kernel's failed assertion ends its executor's context, as natively, and so whoever is at work there. Without, it ends its own client "
            "alone, and each client has a copy of its own of an image that may assert");
  line.option("--orphan-ms", &arguments.orphan_ms, "Milliseconds that work of a client that is gone may run on before the executor is replaced");
  line.option("--trial-ms", &arguments.trial_ms,
              "Milliseconds that a client whose work was lost with a GPU fault of somebody unknown waits, at its next call, until its launches and "
              "the other suspects' have been run again, each client's by themselves in an executor that serves nothing else: whose fault again has "
              "caused it. 0: they are not",
              CommandLine::Range{0u, 60'000u});
  line.option("--drain-ms", &arguments.drain_ms, "Milliseconds that other clients' work is waited for before an executor is replaced");
  line.flag(
      "--standby", arguments.standby,
      "Keep a second executor process of each GPU warm, its context made and all images loaded: when the first ends it takes over within "
      "milliseconds. It takes device memory for a context (about half a GiB on an H200) and for a copy of all loaded images. Without, a process "
      "waits whose driver is initialised, which takes no device memory");
  line.flag("--no-standby", arguments.no_standby, "Keep no process waiting: recoveries take some 30 to 80 ms longer", "--standby");
  line.option("--hang-ms", &arguments.hang_ms,
              "Milliseconds after which a driver call that has not returned costs the executor; calls that may take long, such as loads, get 12 "
              "times as much; 0: no limit");
}

void describe_users(CommandLine& line, Arguments& arguments) {
  line.flag("-m,--multiuser-server,--multiuser", arguments.all_users,
            "Serve clients of every user, not only of the broker's own. Each user has executors of its own: no two share an address space, a context "
            "or a fault. The pipe directory must let them in");
  line.single_dash("-multiuser-server");
  line.single_dash("-multiuser");
  line.flag(
      "--share-executors", arguments.share_executors,
      "With --multiuser-server: all users share executors, which saves a context (about half a GiB on an H200) for each. Promised is then what is "
      "promised among clients of one user: kernels of all share one address space, and one user's kernel may write into another's memory");
  line.option("--client-host-mib", &arguments.client_host_mib,
              "MiB of pinned and staging memory and module images for one client; 0: half the machine's memory");
  line.option("--host-mib", &arguments.host_mib, "The same for all clients together; 0: three quarters of the machine's memory");
  line.option("--client-priorities", &arguments.client_priorities,
              "Priorities that clients may have (set_default_client_priority, CUDA_MPS_CLIENT_PRIORITY): 0, normal, to one less than this",
              CommandLine::Range{2u, proto::kMostClientPriorities});
  line.option("--user-sessions", &arguments.user_sessions,
              "Clients of one user at a time, counted as --max-clients counts them; 0: half of --max-clients with --multiuser-server, else all");
  line.option(
      "--user-connections", &arguments.user_connections,
      "Connections of one user at a time, those included that are not clients yet; 0: half of all (a twentieth of the limit of open files) with "
      "--multiuser-server, else all");
  line.option(
      "--user-host-mib", &arguments.user_host_mib,
      "MiB of pinned and staging memory and module images for all clients of one user; 0: half of --host-mib with --multiuser-server, else all");
  line.option(
      "--user-device-mib", &arguments.user_device_mib,
      "MiB of device memory that all clients of one user may have together on each device, in whatever executors: what they allocate, map and "
      "keep for later, and arrays; cuMemGetInfo shows it. 0 (the default): no limit");
  line.option(
      "--user-compiler-s", &arguments.user_compiler_s,
      "Seconds of the processor that reading, compiling and linking one user's module images may take in a minute. Beyond that they wait, up to "
      "30 s each, while another user's are under way, and are never refused for it; 0: no limit");
  line.option(
      "--user-log-mib", &arguments.user_log_mib,
      "MiB of lines an hour that the clients of one user may cause in the broker's logs, and as many in each executor's; more are left out and "
      "counted; 0: no limit");
  line.option("--window", &arguments.window, "Address range for clients' memory, BEGIN-END in hexadecimal, multiples of 1 GiB");
}

void describe_rights_and_tests(CommandLine& line, Arguments& arguments) {
  line.flag("--dumpable", arguments.dumpable,
            "For debugging: core dumps, debuggers, and /proc/PID of the broker's processes are as of any process. Any process of the broker's user "
            "can then read and write what all clients have in device and pinned memory");
  line.option(
      "--user", &arguments.user,
      "Started by root: become this user before anything is made, with its groups. The pipe directory and the log directory are that user's to "
      "make, and its programs are served (--multiuser-server: everybody's)");
  line.flag("--keep-rights", arguments.keep_rights,
            "The broker's processes keep the capabilities they are started with, may execute programs with rights of their own (set-uid), and may "
            "make every system call. For drivers and tools that need what is refused otherwise");
  line.flag("--verbose", arguments.verbose, "Log each connection");
  line.test_option("--test-move-ms", &arguments.stress.move_ms,
                   "Sessions go to another worker and context every so many milliseconds, whatever they do; 0: as it serves them best");
  line.test_option("--test-window-ms", &arguments.stress.window_ms, "A quiet window opens every so many milliseconds; 0: when one is wanted");
  line.test_option("--test-gather", &arguments.stress.gather, "1: launches wait for more of them as if workers were short of time");
  line.test_option("--test-stock", &arguments.stress.stock, "Graphs of one shape that are made for launches at most; 0: as many as are wanted");
  line.test_option("--test-relocate-ms", &arguments.relocate_ms,
                   "A session moves to another executor every so many milliseconds; 0: when it starves");
  line.test_option("--test-journal", &arguments.test_journal, "The journal's socket, in place of systemd's");
  line.test_option("--test-image-ms", &arguments.image_ms, "Milliseconds that reading an image may take");
  line.hidden_flag("--test-image-faults", arguments.has_image_faults);
  line.hidden_flag("--executor", arguments.executor);
  line.hidden_flag("--compiler", arguments.compiler);
  line.hidden_flag("--linker", arguments.linker);
  line.hidden_option("--device", &arguments.device);
  line.hidden_option("--label", &arguments.label);
  line.hidden_option("--journal", &arguments.journal);
  line.hidden_flag("--cold", arguments.is_cold);
  line.hidden_option("--device-patience-ms", &arguments.device_patience_ms);
  line.hidden_flag("--handover-versions", arguments.handover_versions);
  line.hidden_option("--resume", &arguments.resume);
  line.hidden_option("--former", &arguments.former);
  line.hidden_option("--resume-failed", &arguments.resume_failed);
}

}  // namespace

void describe(CommandLine& line, Arguments& arguments) {
  describe_service(line, arguments);
  describe_executors(line, arguments);
  describe_users(line, arguments);
  describe_rights_and_tests(line, arguments);
}

bool logs_to_files(const Arguments& arguments) { return arguments.log_to != "journald"; }

std::string journal_of(const Arguments& arguments) {
  if (arguments.log_to == "files") return "";
  return arguments.test_journal.empty() ? kJournalSocket : arguments.test_journal;
}

// By name or by path.
bool insists_on_nvjitlink(const Arguments& arguments) { return arguments.ptx_compiler != "auto" && arguments.ptx_compiler != "driver"; }

ExecutorOptions executor_options(const Arguments& arguments) {
  return {.driver_path = arguments.driver,
          .device = arguments.device,
          .workers = arguments.workers,
          .log_dir = arguments.log_dir,
          .journal = arguments.journal,
          .connections = arguments.connections,
          .copy_connections = arguments.copy_connections,
          .side_contexts = arguments.side_contexts,
          .ready_percentages = arguments.ready_percentages,
          .priority = arguments.priority,
          .label = arguments.label,
          .module_cache_mib = arguments.module_cache_mib,
          .latency = proto::parse_latency(arguments.latency).value_or(proto::Latency::balanced),
          .patience_s = arguments.patience_s,
          .standby = arguments.standby,
          .is_cold = arguments.is_cold,
          .stress = arguments.stress,
          .device_patience_ms = arguments.device_patience_ms,
          .user_log_mib = arguments.user_log_mib,
          .dumpable = arguments.dumpable,
          .keeps_rights = arguments.keep_rights,
          .opens_assertions = !arguments.fatal_assertions,
          .never_compiles = insists_on_nvjitlink(arguments)};
}

LinkerOptions linker_options(const Arguments& arguments) {
  return {.driver_path = arguments.driver,
          .device = arguments.device,
          .ptx_compiler = arguments.ptx_compiler,
          .job_time = std::chrono::seconds(arguments.link_s),
          .keeps_rights = arguments.keep_rights,
          .has_test_faults = arguments.has_image_faults,
          .dumpable = arguments.dumpable};
}

ExecutorSettings executor_settings(const Arguments& arguments) {
  ExecutorSettings executors;
  executors.drivers = drivers_to_try(arguments.driver);
  executors.workers = arguments.workers;
  executors.side_contexts = arguments.side_contexts;
  executors.ready_percentages = arguments.ready_percentages;
  executors.priority = arguments.priority;
  executors.connections = arguments.connections;
  executors.copy_connections = arguments.copy_connections;
  executors.module_cache_mib = arguments.module_cache_mib;
  executors.latency = proto::parse_latency(arguments.latency).value_or(proto::Latency::balanced);
  executors.patience_s = arguments.patience_s;
  executors.stress = arguments.stress;
  if (arguments.standby) executors.standby = StandbyKind::warm;
  if (arguments.no_standby) executors.standby = StandbyKind::none;
  executors.hang_limit = std::chrono::milliseconds(arguments.hang_ms);
  if (logs_to_files(arguments)) executors.log_dir = arguments.log_dir;
  executors.journal = journal_of(arguments);
  executors.user_log_mib = arguments.user_log_mib;
  executors.dumpable = arguments.dumpable;
  executors.keeps_rights = arguments.keep_rights;
  executors.opens_assertions = !arguments.fatal_assertions;
  executors.never_compiles = insists_on_nvjitlink(arguments);
  return executors;
}

SessionLimits session_limits(const Arguments& arguments, const AddressWindow& window) {
  SessionLimits limits;
  limits.window = window;
  limits.max_clients = arguments.max_clients;
  limits.orphan = std::chrono::milliseconds(arguments.orphan_ms);
  limits.trial = std::chrono::milliseconds(arguments.trial_ms);
  limits.blocked = std::chrono::seconds(arguments.blocked_s);
  limits.drain = std::chrono::milliseconds(arguments.drain_ms);
  limits.relocate_for_tests = std::chrono::milliseconds(arguments.relocate_ms);
  limits.pool.executors = arguments.executors;
  limits.pool.idle = std::chrono::milliseconds(arguments.idle_ms);
  limits.compilers.idle = std::chrono::milliseconds(arguments.idle_compiler_ms);
  limits.user_minute = std::chrono::seconds(arguments.user_compiler_s);
  limits.compilers.job = std::chrono::milliseconds(arguments.image_ms);
  limits.linkers.idle = std::chrono::milliseconds(arguments.idle_linker_ms);
  limits.linkers.most_idle = std::chrono::milliseconds(arguments.most_idle_linker_ms);
  limits.linkers.job = 2 * std::chrono::seconds(arguments.link_s);
  limits.linkers.kept_bytes = 64ull << 20;  // the store of images keeps them, too
  limits.link_time = std::chrono::seconds(arguments.link_s);
  if (const char* text = std::getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")) limits.memory_limit_text = text;
  if (const char* text = std::getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")) limits.thread_percentage_text = text;
  if (const char* text = std::getenv("CUDA_MPS_CLIENT_PRIORITY")) limits.client_priority_text = text;
  limits.client_priorities = arguments.client_priorities;
  limits.serves_all_users = arguments.all_users;
  limits.has_static_partitions = arguments.static_partitioning;
  limits.spreads_newcomers = arguments.spread;
  limits.shares_executors = arguments.share_executors;
  if (arguments.client_host_mib != 0) limits.resources.client_host_bytes = arguments.client_host_mib << 20;
  if (arguments.host_mib != 0) limits.resources.all_host_bytes = arguments.host_mib << 20;
  limits.resources.user.sessions = arguments.user_sessions;
  limits.resources.user.connections = arguments.user_connections;
  limits.resources.user.host_bytes = arguments.user_host_mib << 20;
  limits.resources.user.device_bytes = arguments.user_device_mib << 20;
  if (arguments.all_users) share_among_users(limits.resources, limits.max_clients);
  limits.quarantine = {arguments.quarantine_faults, std::chrono::seconds(arguments.quarantine_s), arguments.quarantine_executors,
                       std::chrono::seconds(arguments.probation_s)};
  return limits;
}

}  // namespace mpsshim::broker
