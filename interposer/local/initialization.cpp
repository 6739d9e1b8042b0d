// SPDX-License-Identifier: Apache-2.0
// cuInit, and what is known once for the process: driver version, module loading mode, profiler control.
#include <string_view>

#include "gen/api_declarations.hpp"
#include "interposer/environment.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer::api {

CUresult cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return initialise_process();
}

CUresult cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = driver_version();
  return CUDA_SUCCESS;
}

// The driver's default unless this process's environment says otherwise. The broker loads modules whole in either mode.
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::string_view wanted = environment_value(Variable::module_loading);
  if (wanted == "EAGER") {
    *mode = CU_MODULE_EAGER_LOADING;
  } else if (wanted == "LAZY") {
    *mode = CU_MODULE_LAZY_LOADING;
  } else {
    *mode = static_cast<CUmoduleLoadingMode>(driver_facts().module_loading_mode);
  }
  return CUDA_SUCCESS;
}

// Without a profiler these do nothing, and no profiler can attach through this library (docs/undocumented-tables.md).
CUresult cuProfilerStart() { return require_context(); }
CUresult cuProfilerStop() { return require_context(); }
// "Starting with CUDA 12.0, it always returns error code CUDA_ERROR_NOT_SUPPORTED" (manual, "Profiler Control [DEPRECATED]").
CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace mpsshim::interposer::api
