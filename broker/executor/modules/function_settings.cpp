// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/function_settings.hpp"

namespace mpsshim::broker {

CUresult FunctionSettings::set(const Driver& driver, CUfunction function, CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return raise_shared_memory_limit(driver, function, value);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return prefer(driver, function, value);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: return allow_large_clusters(driver, function, value);
    // Launches of a client's have them as attributes, and its library sends no such setting. The driver's are the executor's: cluster_setting.hpp.
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return CUDA_ERROR_NOT_SUPPORTED;
    default: return driver->cuFuncSetAttribute(function, attribute, value);
  }
}

CUresult FunctionSettings::raise_shared_memory_limit(const Driver& driver, CUfunction function, int bytes) {
  int current = 0;
  const CUresult result = driver->cuFuncGetAttribute(&current, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function);
  if (result != CUDA_SUCCESS) return result;
  if (bytes >= 0 && bytes <= current) return CUDA_SUCCESS;
  return driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

// Every process of a library allows it anew. Taken back by one client, it still holds for the others.
CUresult FunctionSettings::allow_large_clusters(const Driver& driver, CUfunction function, int value) {
  if (value == 0 || allows_large_clusters_) return CUDA_SUCCESS;
  const CUresult result = driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, value);
  allows_large_clusters_ = result == CUDA_SUCCESS;
  return result;
}

CUresult FunctionSettings::prefer(const Driver& driver, CUfunction function, int carve_out) {
  if (carve_out == carve_out_) return CUDA_SUCCESS;
  const CUresult result = driver->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, carve_out);
  if (result == CUDA_SUCCESS) carve_out_ = carve_out;
  return result;
}

}  // namespace mpsshim::broker
