// SPDX-License-Identifier: Apache-2.0
// What mpsbroker's command line says, in whatever role it is started, and what the roles make of it.
#pragma once

#include <cstdint>
#include <string>

#include "broker/command_line.hpp"
#include "broker/control/executors/executor_settings.hpp"
#include "broker/control/sessions/session_limits.hpp"
#include "broker/executor/process/executor_main.hpp"
#include "broker/linker/linker_main.hpp"

namespace mpsshim::broker {

struct Arguments {
  bool daemon = false;
  bool foreground = false;
  bool executor = false;
  bool compiler = false;
  bool linker = false;
  bool verbose = false;
  bool dumpable = false;
  bool keep_rights = false;
  bool fatal_assertions = false;
  std::string user;
  std::string driver = "auto";
  std::string configuration;  // a file; "": none
  std::string pipe_dir;
  std::string log_dir;
  std::string window = "0x200000000000-0x500000000000";
  unsigned workers = 0;
  unsigned side_contexts = 5;
  std::string ready_percentages;  // proto::parse_percentages
  unsigned priority = 10;
  unsigned connections = ExecutorOptions{}.connections;
  unsigned copy_connections = ExecutorOptions{}.copy_connections;
  unsigned device = 0;
  unsigned orphan_ms = 200;
  unsigned trial_ms = 1000;
  unsigned drain_ms = 200;
  unsigned max_clients = control::kMaxLeases;
  unsigned executors = 3;
  unsigned quarantine_faults = 3;
  unsigned quarantine_s = 300;
  unsigned probation_s = 0;
  unsigned quarantine_executors = 1;
  unsigned blocked_s = 20;
  unsigned idle_ms = 10'000;
  std::string label = "0";
  unsigned module_cache_mib = 1024;
  std::string latency = proto::latency_word(ExecutorOptions{}.latency);
  unsigned patience_s = ExecutorOptions{}.patience_s;
  StressOptions stress;
  unsigned relocate_ms = 0;
  unsigned image_ms = 20'000;
  unsigned idle_compiler_ms = 5'000;
  unsigned idle_linker_ms = 2'000;
  unsigned most_idle_linker_ms = 300'000;
  unsigned link_s = 60;
  std::string ptx_compiler = "auto";
  bool has_image_faults = false;
  bool standby = false;
  bool no_standby = false;
  unsigned hang_ms = 10'000;
  bool is_cold = false;
  unsigned device_patience_ms = 0;
  bool handover_versions = false;
  int resume = -1;            // the state that the program before this one handed over
  int former = -1;            // that program, to go back to
  std::string resume_failed;  // why the one that was to follow could not take over
  bool all_users = false;
  bool share_executors = false;
  bool static_partitioning = false;
  unsigned protocol = 2;
  bool spread = false;
  std::uint64_t client_host_mib = 0;
  std::uint64_t host_mib = 0;
  unsigned client_priorities = 2;
  std::uint64_t user_sessions = 0;
  std::uint64_t user_connections = 0;
  std::uint64_t user_host_mib = 0;
  std::uint64_t user_device_mib = 0;
  unsigned user_compiler_s = 30;
  unsigned user_log_mib = 16;
  std::string log_to = "files";
  std::string test_journal;
  std::string journal;  // of an executor: the socket that it logs to; "": none
  std::string metrics;  // where; "": nowhere
  bool metrics_for_others = false;
  int exit_when_idle = -1;  // seconds; -1: never
};

// The options, in the order in which --help lists them.
void describe(CommandLine& line, Arguments& arguments);

[[nodiscard]] bool logs_to_files(const Arguments& arguments);
[[nodiscard]] bool insists_on_nvjitlink(const Arguments& arguments);
[[nodiscard]] std::string journal_of(const Arguments& arguments);  // its socket; "": nothing is logged there
[[nodiscard]] ExecutorOptions executor_options(const Arguments& arguments);
[[nodiscard]] LinkerOptions linker_options(const Arguments& arguments);
// For the control process.
[[nodiscard]] control::ExecutorSettings executor_settings(const Arguments& arguments);
[[nodiscard]] control::SessionLimits session_limits(const Arguments& arguments, const control::AddressWindow& window);

}  // namespace mpsshim::broker
