// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/function_settings.hpp"

namespace mpsshim::broker {

CUresult FunctionSettings::set(const Driver& driver, CUfunction function, CUfunction_attribute attribute, int value) {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return raise_shared_memory_limit(driver, function, value);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return prefer(driver, function, value);
    // Taken back by one client, it still holds for the others.
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return value == 0 ? CUDA_SUCCESS : driver->cuFuncSetAttribute(function, attribute, value);
    default: return driver->cuFuncSetAttribute(function, attribute, value);
  }
}

// A second thread that read the old limit here and set a smaller one than the first would have the first one's launches refused.
CUresult FunctionSettings::raise_shared_memory_limit(const Driver& driver, CUfunction function, int bytes) {
  int current = 0;
  const CUresult result = driver->cuFuncGetAttribute(&current, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function);
  if (result != CUDA_SUCCESS) return result;
  if (bytes >= 0 && bytes <= current) return CUDA_SUCCESS;
  return driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

CUresult FunctionSettings::prefer(const Driver& driver, CUfunction function, int carve_out) {
  if (carve_out == carve_out_) return CUDA_SUCCESS;
  const CUresult result = driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, carve_out);
  if (result == CUDA_SUCCESS) carve_out_ = carve_out;
  return result;
}

}  // namespace mpsshim::broker
