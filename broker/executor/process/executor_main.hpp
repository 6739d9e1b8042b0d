// SPDX-License-Identifier: Apache-2.0
// How the control process starts an executor: it re-executes its own binary with the hidden flag --executor, and main() calls this.
// The executor finds its link, the facts and the progress table at the descriptors named in broker/control_messages.hpp.
#pragma once

#include <string>

#include "broker/executor/base/stress_options.hpp"
#include "proto/latency.hpp"

namespace mpsshim::broker {

struct ExecutorOptions {
  std::string driver_path;           // as dlopen takes it: a file name for the loader's search, or a path
  unsigned device = 0;               // ordinal in that driver
  unsigned workers = 0;              // threads that serve sessions; 0: min(8, cores / 2), at least 1
  std::string log_dir;               // server.log is appended there; empty: it is not
  std::string journal{};             // the socket of systemd's journal, for the same lines; empty: they do not go there
  unsigned connections = 10;         // CUDA_DEVICE_MAX_CONNECTIONS; each costs milliseconds of an executor's start, as does
  unsigned copy_connections = 8;     // CUDA_DEVICE_MAX_COPY_CONNECTIONS
  unsigned side_contexts = 0;        // of as many workers besides the first (side_context.hpp)
  std::string ready_percentages{};   // of clients, for which parts of the device are made at the start (session_share.hpp)
  unsigned priority = 0;             // of the threads that clients wait for (thread_priority.hpp)
  std::string label = "0";           // in its log lines; a device may have more than one executor
  unsigned module_cache_mib = 1024;  // images of which nobody uses a copy stay loaded up to this size
  proto::Latency latency = proto::Latency::balanced;
  unsigned patience_s = 600;         // so long a call waits for another client's kernel; 0: as long as it takes
  bool standby = false;              // it begins as one (for whoever reads its command line)
  bool is_cold = false;              // no context before MakeContext: memory, or the GPU, is spared until then
  StressOptions stress;
  unsigned device_patience_ms = 0;   // so long a context is asked for again while another process has the device for itself
  unsigned user_log_mib = 0;         // an hour, of lines; 0: no limit
  bool dumpable = false;             // for the command line alone: main() has seen to it
  bool keeps_rights = false;         // broker/rights/rights.hpp
  int counts_file = -1;              // for the launcher, who has the executor inherit it (SessionCountsFile); -1: there is none
  bool opens_assertions = true;      // docs/modules.md, "Assertions"
  bool never_compiles = false;       // not even where no linker process can (LinkerClient::never_here)
};

// Runs until the control process says Quit or hangs up. The result is the process's exit status.
int executor_main(const ExecutorOptions& options);

}  // namespace mpsshim::broker
