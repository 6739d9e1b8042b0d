// SPDX-License-Identifier: Apache-2.0
// The linker process: gives NVIDIA's compiler what clients have for it, one job at a time, where a crash costs one job of one user. The control
// process starts it by re-executing its own binary with the hidden flag --linker, and main() calls this. It finds its socket at kCompilerControlFd
// and speaks as a compiler process does (compiler_messages.hpp); jobs are requests (link_file.hpp), answers their outcomes. The driver's compiler
// works in a context only, so this process has one, of the executors' driver and device, unless a toolkit's compiler is chosen (nvjitlink.hpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace mpsshim::broker {

inline constexpr std::size_t kLinkerMemoryBytes = std::size_t{4} << 30;  // that it may write, besides what it has with its context
inline constexpr std::size_t kLinkerFileBytes = std::size_t{320} << 20;  // a result, its logs
inline constexpr std::size_t kLinkerFiles = 1024;

struct LinkerOptions {
  std::string driver_path;  // as ExecutorOptions'
  unsigned device = 0;
  // Or "driver", "nvjitlink", or the path of an nvJitLink. auto: nvJitLink where one process alone may have a context, else the driver.
  std::string ptx_compiler = "auto";
  std::chrono::seconds job_time{60};  // of the processor, a job
  bool keeps_rights = false;          // broker/rights/rights.hpp
  bool has_test_faults = false;       // as CompilerOptions'; the mark is "mpsshim-test-link:"
  bool dumpable = false;              // for the command line alone: main() has seen to it
};

// Runs until the control process hangs up. The result is the process's exit status.
int linker_main(const LinkerOptions& options);

}  // namespace mpsshim::broker
