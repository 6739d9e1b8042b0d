// SPDX-License-Identifier: Apache-2.0
//
// The one process that may have a context where Config::exclusive names a file: it holds a lock on that file, which the kernel takes back when
// the process ends. A mark in the file tells that somebody has not given the device back in order; whoever finds it waits as for a GPU driver
// that is still taking the dead process's context down.
// Part of Context, which serialises the calls.
#pragma once

namespace mpsshim::cpudriver {

class ExclusiveProcess {
 public:
  ExclusiveProcess() = default;
  ExclusiveProcess(const ExclusiveProcess&) = delete;
  ~ExclusiveProcess();
  // False: another process has the device, or had it a moment ago. True also where the compute mode is DEFAULT.
  [[nodiscard]] bool claim();
  void release();

 private:
  int file_ = -1;
};

}  // namespace mpsshim::cpudriver
