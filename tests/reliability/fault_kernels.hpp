// SPDX-License-Identifier: Apache-2.0
// Kernels that fault in every way there is: those of tests/conformance/kernels.cu.
#pragma once

#include <string>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

class FaultKernels {
 public:
  FaultKernels();  // loads them into the current context
  // Launches the kernel for `kind` and waits: what the wait gives. Kinds: see the source.
  [[nodiscard]] CUresult fault(const std::string& kind) const;

 private:
  [[nodiscard]] CUfunction function(const char* name) const;

  std::string image_;
  CUmodule module_ = nullptr;
  CUmodule broken_ = nullptr;  // machine code that no GPU knows; null where there is none
  CUdeviceptr memory_ = 0;
};

}  // namespace mpsshim::test
