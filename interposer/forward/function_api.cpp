// SPDX-License-Identifier: Apache-2.0
// Function attributes (CUDA Driver API manual, "Execution Control").
#include "gen/api_declarations.hpp"
#include "interposer/forward/functions.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_function(CUfunction handle, F&& f) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Function* function = Functions::instance().resolve(handle);
  return function != nullptr ? f(*function) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [&](Function& function) { return Functions::get_attribute(function, attrib, *pi); });
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return with_function(hfunc, [&](Function& function) { return Functions::instance().set_attribute(function, attrib, value); });
}

// Preferences of the L1 split: the driver may ignore them, and since Volta the carveout attribute says the same better.
CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [](Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [](Function&) { return CUDA_SUCCESS; });
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [&](Function& function) {
    *hmod = to_handle<CUmodule>(function.module);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [&](Function& function) {
    *name = function.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  if (paramOffset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(func, [&](Function& function) {
    if (paramIndex >= function.layout.size()) return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = function.layout[paramIndex].offset;
    if (paramSize != nullptr) *paramSize = function.layout[paramIndex].size;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(function, [&](Function&) {
    *state = CU_FUNCTION_LOADING_STATE_LOADED;  // looking it up has loaded it
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncLoad(CUfunction function) {
  return with_function(function, [](Function&) { return CUDA_SUCCESS; });
}

}  // namespace mpsshim::interposer::api
