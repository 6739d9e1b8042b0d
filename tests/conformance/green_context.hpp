// SPDX-License-Identifier: Apache-2.0
// Shares of the multiprocessors, and green contexts made of them.
#pragma once

#include <vector>

#include "driver_under_test.hpp"

#if CUDA_VERSION >= 13000
namespace mpsshim::test {

inline constexpr unsigned kFine = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;

inline CUdevResource device_resource() {
  CUdevResource resource{};
  OK(CU(cuDeviceGetDevResource)(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
  return resource;
}

struct Split {
  std::vector<CUdevResource> groups;
  CUdevResource remaining{};
};

inline Split split(const CUdevResource& input, unsigned groups, unsigned flags, unsigned min_count) {
  Split made;
  made.groups.resize(groups);
  OK(CU(cuDevSmResourceSplitByCount)(made.groups.data(), &groups, &input, &made.remaining, flags, min_count));
  made.groups.resize(groups);
  return made;
}

inline CUdevResourceDesc description(std::vector<CUdevResource> resources) {
  CUdevResourceDesc made = nullptr;
  OK(CU(cuDevResourceGenerateDesc)(&made, resources.data(), static_cast<unsigned>(resources.size())));
  return made;
}

// Of the smallest share that kernels may cluster in.
class Green {
 public:
  explicit Green(CUdevResourceDesc with = nullptr) {
    const CUdevResource whole = device_resource();
    if (with == nullptr) with = description({split(whole, 1, 0, whole.sm.minSmPartitionSize).groups.at(0)});
    OK(CU(cuGreenCtxCreate)(&handle_, with, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(CU(cuCtxFromGreenCtx)(&context_, handle_));
  }
  ~Green() { end(); }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  void end() {
    if (handle_ != nullptr) CU(cuGreenCtxDestroy)(handle_);
    handle_ = nullptr;
  }

  CUgreenCtx handle() const { return handle_; }
  CUcontext context() const { return context_; }
  CUstream stream() const {
    CUstream made = nullptr;
    OK(CU(cuGreenCtxStreamCreate)(&made, handle_, CU_STREAM_NON_BLOCKING, 0));
    return made;
  }
  CUgreenCtx of(CUstream stream) const {
    CUgreenCtx found = nullptr;
    OK(CU(cuStreamGetGreenCtx)(stream, &found));
    return found;
  }

 private:
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
};

// Current while it lasts.
class Current {
 public:
  explicit Current(CUcontext context) { OK(CU(cuCtxPushCurrent)(context)); }
  ~Current() {
    CUcontext popped = nullptr;
    CU(cuCtxPopCurrent)(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

inline unsigned multiprocessors() {
  int count = 0;
  OK(CU(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  return static_cast<unsigned>(count);
}

}  // namespace mpsshim::test
#endif
