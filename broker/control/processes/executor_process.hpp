// SPDX-License-Identifier: Apache-2.0
// Starting, killing and reaping the executor's process. ExecutorLauncher is the interface, so that tests can put a peer of their own at the
// other end; ProcessLauncher is the real one: fork and exec of this very binary with --executor.
// Called by ManagedExecutor on the control process's thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "broker/executor/process/executor_main.hpp"
#include "proto/segment.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

// What one life of an executor consists of, seen from the control process.
struct ExecutorLife {
  pid_t pid = -1;
  proto::FileDescriptor pidfd;  // readable once the process is dead
  proto::Socket link;
  proto::FileDescriptor facts;     // DriverFacts, filled by the executor
  proto::FileDescriptor progress;  // ProgressTable
  proto::FileDescriptor calls;     // CallTable
  proto::FileDescriptor output;    // its standard output, a file
  proto::FileDescriptor errors;    // the end of its standard error that is read
};

class ExecutorLauncher {
 public:
  virtual ~ExecutorLauncher() = default;
  [[nodiscard]] virtual std::optional<ExecutorLife> launch(const ExecutorOptions& options) = 0;  // nullopt on failure (errno)
  virtual void kill(const ExecutorLife& life) = 0;
  virtual void halt(const ExecutorLife& life) = 0;  // it is to stand still until it is killed
  [[nodiscard]] virtual bool stands_still(const ExecutorLife& life) = 0;  // all of its threads do, or it is dead
  // Once dead: how it ended, as the end of a sentence ("was ended by signal 9").
  [[nodiscard]] virtual std::string reap(const ExecutorLife& life) = 0;
};

// For whoever loads the driver: this process's, without what would make the driver look for NVIDIA's own daemon, or be ours.
[[nodiscard]] std::vector<std::string> driver_environment();

class ProcessLauncher final : public ExecutorLauncher {
 public:
  [[nodiscard]] std::optional<ExecutorLife> launch(const ExecutorOptions& options) override;
  void kill(const ExecutorLife& life) override;
  void halt(const ExecutorLife& life) override;
  [[nodiscard]] bool stands_still(const ExecutorLife& life) override;
  [[nodiscard]] std::string reap(const ExecutorLife& life) override;
};

}  // namespace mpsshim::broker::control
