// SPDX-License-Identifier: Apache-2.0
// Kernels that append their value to a list on the device, so that the order of running can be read back.
#pragma once

#include <vector>

#include "loaded_image.hpp"

namespace mpsshim::test {

class KernelList {
 public:
  explicit KernelList(const LoadedImage& image) : append_(image.function("append")), values_(256), count_(1) {}

  // Valid until the next call.
  CUDA_KERNEL_NODE_PARAMS node(unsigned value) {
    value_ = value;
    list_address_ = values_.address();
    count_address_ = count_.address();
    arguments_[0] = &list_address_;
    arguments_[1] = &count_address_;
    arguments_[2] = &value_;
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = append_;
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = arguments_;
    return parameters;
  }
  CUresult launch_one(CUstream stream, unsigned value) { return launch(append_, stream, 1, 1, values_.address(), count_.address(), value); }
  CUgraphNode add(CUgraph graph, unsigned value, const std::vector<CUgraphNode>& behind = {}) {
    const auto parameters = node(value);
    CUgraphNode added = nullptr;
    OK(CU(cuGraphAddKernelNode)(&added, graph, behind.data(), behind.size(), &parameters));
    return added;
  }
  CUfunction function() const { return append_; }
  std::vector<unsigned> values() const {
    std::vector<unsigned> all;
    for (unsigned i = 0; i < count_[0]; ++i) all.push_back(values_[i]);
    return all;
  }
  void clear() {
    OK(CU(cuMemsetD8)(count_.address(), 0, sizeof(unsigned)));
    OK(CU(cuStreamSynchronize)(nullptr));
  }

 private:
  CUfunction append_;
  DeviceArray<unsigned> values_;
  DeviceArray<unsigned> count_;
  CUdeviceptr list_address_ = 0;
  CUdeviceptr count_address_ = 0;
  unsigned value_ = 0;
  void* arguments_[3] = {};
};

}  // namespace mpsshim::test
