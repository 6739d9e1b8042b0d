// SPDX-License-Identifier: Apache-2.0
// Kernels that fault in every way there is: those of tests/conformance/kernels.cu.
#pragma once

#include <string>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

[[nodiscard]] CUmodule load_kernels();
// Kernels allocate(u64 out): 42 in memory of the device's heap, its address to *out; read_back(u64 in, u64 out): what lies there.
[[nodiscard]] CUmodule load_heap_kernels();

// One thread of the module's kernel; returns without waiting.
template <class... Arguments>
void launch_one(CUmodule module, const char* name, Arguments... arguments) {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module, name));
  void* pointers[] = {&arguments..., nullptr};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, nullptr));
}

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
