// SPDX-License-Identifier: Apache-2.0
// Starting, killing and reaping a compiler process. CompilerLauncher is the interface, so that tests can put a peer of their own at the other end;
// CompilerProcessLauncher is the real one: fork and exec of this very binary with --compiler, with no descriptor but its socket, and of the
// environment nothing but where libraries lie.
// Called by Compilers on the control process's thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <sys/types.h>

#include "broker/compiler/compiler_main.hpp"
#include "proto/segment.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

struct CompilerLife {
  pid_t pid = -1;
  proto::FileDescriptor pidfd;  // readable once the process is dead
  proto::Socket link;
};

// How one has ended.
struct CompilerEnd {
  int signal = 0;    // 0: by itself
  std::string text;  // as the end of a sentence ("was ended by signal 9 (Killed)")
};

class CompilerLauncher {
 public:
  virtual ~CompilerLauncher() = default;
  [[nodiscard]] virtual std::optional<CompilerLife> launch() = 0;  // nullopt on failure (errno)
  virtual void kill(const CompilerLife& life) = 0;
  // That it has used so far; until reap().
  [[nodiscard]] virtual std::chrono::nanoseconds processor_time(const CompilerLife& life) = 0;
  [[nodiscard]] virtual CompilerEnd reap(const CompilerLife& life) = 0;  // waits until it is dead
};

class CompilerProcessLauncher final : public CompilerLauncher {
 public:
  explicit CompilerProcessLauncher(const CompilerOptions& options) : options_(options) {}
  [[nodiscard]] std::optional<CompilerLife> launch() override;
  void kill(const CompilerLife& life) override;
  [[nodiscard]] std::chrono::nanoseconds processor_time(const CompilerLife& life) override;
  [[nodiscard]] CompilerEnd reap(const CompilerLife& life) override;

 private:
  const CompilerOptions options_;
};

}  // namespace mpsshim::broker::control
