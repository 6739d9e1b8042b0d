// SPDX-License-Identifier: Apache-2.0
//
// What the environment says about the CPU devices. Read once, at the first use, and never again: all devices have one
// shape. A value that makes no sense is reported on stderr and replaced by the default.
//
//   MPSSHIM_CPU_DEVICES             how many there are, 1 (default) to 16; CUDA_VISIBLE_DEVICES chooses among them (device/devices.hpp)
//   MPSSHIM_CPU_COMPUTE_CAPABILITY  "7.5" (default) up to "12.0"; also decides shared memory and register figures
//   MPSSHIM_CPU_MEMORY_MIB          size of each device's memory, default 4096
//   MPSSHIM_CPU_THREADS             threads that run the blocks of kernels, default: one a core
//   MPSSHIM_CPU_RELAXED             1: calls that wait for every running kernel on a GPU do not wait here
//   MPSSHIM_CPU_UNEVEN              1: a split of the device's multiprocessors makes one group less, as of a GPU whose clusters are of unequal size
//   MPSSHIM_CPU_APART               1: no device reaches another's memory
//   MPSSHIM_CPU_EXCLUSIVE           a file's path: compute mode EXCLUSIVE_PROCESS among the processes that name the same file; of a further
//                                   device the file has its number behind a dot
//   MPSSHIM_CPU_TEARDOWN_MS         with that: milliseconds that the context of a process which ended without releasing it still refuses others
#pragma once

#include <cstddef>
#include <string>

namespace mpsshim::cpudriver {

struct Config {
  unsigned devices = 1;
  int capability_major = 7;
  int capability_minor = 5;
  std::size_t memory_bytes = std::size_t{4096} << 20;
  unsigned threads = 1;
  bool relaxed = false;
  bool uneven = false;
  bool apart = false;
  std::string exclusive;  // empty: compute mode DEFAULT
  unsigned teardown_ms = 0;

  static const Config& get();
};

}  // namespace mpsshim::cpudriver
