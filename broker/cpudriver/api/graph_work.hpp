// SPDX-License-Identifier: Apache-2.0
//
// From the parameters of graph nodes, as the API takes them, to what the nodes do. Parameters are checked as the calls
// on streams check theirs; what they point at is copied.
#pragma once

#include <cuda.h>

#include "broker/cpudriver/graphs/graph.hpp"

namespace mpsshim::cpudriver {

struct WorkOrError {
  CUresult error = CUDA_SUCCESS;
  NodeWork work;
};

WorkOrError kernel_work(const CUDA_KERNEL_NODE_PARAMS* parameters);
WorkOrError memory_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters);
WorkOrError copy_work(const CUDA_MEMCPY3D* parameters);
WorkOrError fill_work(const CUDA_MEMSET_NODE_PARAMS* parameters);
WorkOrError host_work(const CUDA_HOST_NODE_PARAMS* parameters);

}  // namespace mpsshim::cpudriver
