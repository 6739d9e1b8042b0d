// SPDX-License-Identifier: Apache-2.0
// A graph of one node, made with a kernel that has more than 4,000 bytes of parameters, which changes places with one that has eight.
#pragma once

#include <cuda.h>

namespace mpsshim::test {

// One thread, its context current. Every function throws Failure.
class WideGraph {
 public:
  // A word for each multiprocessor: both kernels count their blocks there.
  explicit WideGraph(CUdeviceptr seen);
  WideGraph(const WideGraph&) = delete;
  ~WideGraph();

  // Launched with many parameters, then with few, and waited for each time.
  void run(CUstream stream, unsigned blocks);

 private:
  void set(CUfunction function, unsigned blocks);

  const CUdeviceptr seen_;
  CUmodule module_ = nullptr;
  CUfunction wide_ = nullptr, narrow_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphNode node_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace mpsshim::test
