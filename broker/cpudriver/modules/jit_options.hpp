// SPDX-License-Identifier: Apache-2.0
//
// Options of the calls that compile: logs are written, targets and optimisation levels mean nothing to an interpreter.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace mpsshim::cpudriver {

class JitOptions {
 public:
  // CUDA_ERROR_INVALID_VALUE: an option that does not exist.
  static CUresult read(unsigned count, const CUjit_option* options, void** values, JitOptions& result);

  // Into the caller's log, cut to its size, and the size written back into the option's value. To stderr where the caller has none.
  void report_error(const std::string& sentence) const;
  // Sets both logs to "nothing written".
  void clear_logs() const;

 private:
  struct Log {
    char* buffer = nullptr;
    std::size_t capacity = 0;
    void** size_value = nullptr;  // where the number of bytes written goes

    void write(const std::string& text) const;
  };

  Log info_;
  Log error_;
};

}  // namespace mpsshim::cpudriver
