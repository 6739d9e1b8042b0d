// SPDX-License-Identifier: Apache-2.0
// Graphs: calls that cases make often, those that have two shapes in cuda.h, and the parameters that cases give their nodes.
#pragma once

#include <cstddef>

#include "driver_under_test.hpp"

// The CPU driver plays the graph calls that the broker makes, not all that programs make.
#define SKIP_ON_CPU_DRIVER() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver plays what the broker asks of it, not these calls")

namespace mpsshim::test {

inline CUgraph new_graph() {
  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  return graph;
}

inline CUgraphExec instantiated(CUgraph graph) {
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  return exec;
}

inline size_t node_count(CUgraph graph) {
  size_t count = 0;
  OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
  return count;
}

inline CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(node, &type));
  return type;
}

inline void launch_and_wait(CUgraphExec exec, CUstream stream = nullptr) {
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
}

inline CUresult add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
#if CUDA_VERSION >= 13000
  return CU(cuGraphAddDependencies)(graph, from, to, nullptr, count);
#else
  return CU(cuGraphAddDependencies)(graph, from, to, count);
#endif
}

inline CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count, CUgraphNodeParams* params) {
#if CUDA_VERSION >= 13000
  return CU(cuGraphAddNode)(node, graph, behind, nullptr, count, params);
#else
  return CU(cuGraphAddNode)(node, graph, behind, count, params);
#endif
}

inline CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr address, unsigned value, size_t width) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = address;
  fill.value = value;
  fill.elementSize = 4;
  fill.width = width;
  fill.height = 1;
  return fill;
}

inline CUDA_MEMCPY3D copy_of(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source;
  copy.dstDevice = destination;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

}  // namespace mpsshim::test
