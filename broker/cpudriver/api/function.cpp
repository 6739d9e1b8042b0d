// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: what describes functions and kernels in "Execution Control" and "Library Management", and
// "Occupancy". A CUkernel is the handle of its CUfunction.
#include <algorithm>
#include <utility>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/modules/launch.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class Body>
CUresult with_function(Needs needs, const void* handle, Body&& body) {
  return entry(needs, [&]() -> CUresult {
    const auto function = HandleTable<Function>::get().find(handle);
    return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*function);
  });
}
template <class Body>
CUresult with_function(const void* handle, Body&& body) {
  return with_function(Needs::handle, handle, std::forward<Body>(body));
}

CUresult parameter_info(const Function& function, size_t index, size_t* offset, size_t* size) {
  const auto& parameters = function.info().parameters;
  if (offset == nullptr || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = parameters[index].offset;
  if (size != nullptr) *size = parameters[index].size;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return with_function(hfunc, [&](Function& function) {
    return pi == nullptr ? CUDA_ERROR_INVALID_VALUE : function.attribute(attrib, *pi);
  });
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return with_function(hfunc, [&](Function& function) { return function.set_attribute(attrib, value); });
}

CUresult CUDAAPI cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncGetAttribute(pi, attrib, reinterpret_cast<CUfunction>(kernel));
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attrib, val);
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache) {
  return with_function(hfunc, [](Function&) { return CUDA_SUCCESS; });  // a preference without effect
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncSetCacheConfig(reinterpret_cast<CUfunction>(kernel), config);
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  return with_function(hfunc, [&](Function& function) {
    if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *hmod = reinterpret_cast<CUmodule>(function.module().get());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  return cuFuncGetModule(reinterpret_cast<CUmodule*>(pLib), reinterpret_cast<CUfunction>(kernel));
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
  return with_function(hfunc, [&](Function& function) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = function.info().name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel hfunc) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(hfunc));
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  return with_function(func, [&](Function& f) { return parameter_info(f, paramIndex, paramOffset, paramSize); });
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  return with_function(Needs::context, kernel, [&](Function& f) { return parameter_info(f, paramIndex, paramOffset, paramSize); });
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  return with_function(Needs::context, kernel, [&](Function& function) {
    if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bring_to_device(function);
    *pFunc = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  return with_function(function, [&](Function&) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  return with_function(function, [](Function&) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize,
                                                                      size_t dynamicSMemSize, unsigned int flags) {
  return with_function(Needs::context, func, [&](Function& function) {
    if (numBlocks == nullptr || blockSize <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *numBlocks = resident_blocks(function, blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                             size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

// The largest number of threads a multiprocessor can hold; of equals, the largest block.
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                           CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                           size_t dynamicSMemSize, int blockSizeLimit,
                                                           unsigned int flags) {
  return with_function(Needs::context, func, [&](Function& function) {
    if (minGridSize == nullptr || blockSize == nullptr || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int warp = attribute_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    const int limit = static_cast<int>(function.info().max_threads_per_block);
    const int largest = blockSizeLimit > 0 ? std::min(blockSizeLimit, limit) : limit;
    int best_threads = 0;
    *blockSize = 0;
    *minGridSize = 0;
    for (int block = (largest + warp - 1) / warp * warp; block > 0; block -= warp) {
      const int tried = std::min(block, largest);
      const size_t shared = blockSizeToDynamicSMemSize != nullptr ? blockSizeToDynamicSMemSize(tried) : dynamicSMemSize;
      const int blocks = resident_blocks(function, tried, shared);
      if (blocks * tried <= best_threads) continue;
      best_threads = blocks * tried;
      *blockSize = tried;
      *minGridSize = blocks * attribute_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                                  int blockSizeLimit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                   dynamicSMemSize, blockSizeLimit, 0);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                         int blockSize) {
  return with_function(Needs::context, func, [&](Function& function) {
    if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
    // The largest amount with which so many blocks still fit; more memory never fits more blocks.
    size_t fits = 0;
    size_t too_much = static_cast<size_t>(function.max_dynamic_shared_bytes()) + 1;
    if (resident_blocks(function, blockSize, 0) < numBlocks) return CUDA_ERROR_INVALID_VALUE;
    while (too_much - fits > 1) {
      const size_t middle = fits + (too_much - fits) / 2;
      (resident_blocks(function, blockSize, middle) >= numBlocks ? fits : too_much) = middle;
    }
    *dynamicSmemSize = fits;
    return CUDA_SUCCESS;
  });
}
