// SPDX-License-Identifier: Apache-2.0
// Starting, killing and reaping a compiler or a linker process. CompilerLauncher is the interface, so that tests can put a peer of their own at the
// other end; the real ones fork and exec this very binary with --compiler or --linker, with no descriptor but its socket. A compiler process has of
// the environment nothing but where libraries lie, a linker process what executors have, and no cache of compiled code.
// Called by Compilers on the control process's thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "broker/compiler/compiler_main.hpp"
#include "broker/linker/linker_main.hpp"
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
  [[nodiscard]] virtual std::optional<CompilerLife> launch(unsigned device) = 0;  // nullopt on failure (errno)
  // What processes to come work with, where they need a driver: that of the executors, once it is known.
  virtual void use_driver(const std::string&) {}
  virtual void kill(const CompilerLife& life) = 0;
  // That it has used so far; until reap().
  [[nodiscard]] virtual std::chrono::nanoseconds processor_time(const CompilerLife& life) = 0;
  [[nodiscard]] virtual CompilerEnd reap(const CompilerLife& life) = 0;  // waits until it is dead
};

// Of a process: words of its command line, and its environment.
struct CompilerCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};

class CompilerProcessLauncher : public CompilerLauncher {
 public:
  explicit CompilerProcessLauncher(const CompilerOptions& options) : options_(options) {}
  [[nodiscard]] std::optional<CompilerLife> launch(unsigned device) override;
  void kill(const CompilerLife& life) override;
  [[nodiscard]] std::chrono::nanoseconds processor_time(const CompilerLife& life) override;
  [[nodiscard]] CompilerEnd reap(const CompilerLife& life) override;

 protected:
  [[nodiscard]] virtual CompilerCommand command(unsigned device) const;

 private:
  const CompilerOptions options_;
};

class LinkerProcessLauncher final : public CompilerProcessLauncher {
 public:
  explicit LinkerProcessLauncher(const LinkerOptions& options) : CompilerProcessLauncher(CompilerOptions{}), options_(options) {}
  void use_driver(const std::string& path) override { options_.driver_path = path; }

 protected:
  [[nodiscard]] CompilerCommand command(unsigned device) const override;

 private:
  LinkerOptions options_;
};

}  // namespace mpsshim::broker::control
