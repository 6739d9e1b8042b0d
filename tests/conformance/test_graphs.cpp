// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

TEST_CASE("a linear graph: kernels, then a fence, launched, updated, launched again") {
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* const words = static_cast<std::atomic<unsigned>*>(pinned);
  const auto gate = reinterpret_cast<CUdeviceptr>(words + 16);
  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUgraphNode kernels[3]{};
  for (unsigned i = 0; i < 3; ++i) {
    const auto parameters = list.node(i + 1);
    OK(CU(cuGraphAddKernelNode)(&kernels[i], graph, i == 0 ? nullptr : &kernels[i - 1], i == 0 ? 0 : 1, &parameters));
  }
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = reinterpret_cast<CUdeviceptr>(words);
  write.writeValue.value = 1;
  CUDA_BATCH_MEM_OP_NODE_PARAMS fence{};
  fence.ctx = context.handle();
  fence.count = 1;
  fence.paramArray = &write;
  CUgraphNode fence_node = nullptr;
  OK(CU(cuGraphAddBatchMemOpNode)(&fence_node, graph, &kernels[2], 1, &fence));
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  const CUstream stream = new_stream();
  OK(CU(cuGraphUpload)(exec, stream));

  // Held back by the gate, so that the updates below are made while the first launch is still queued.
  OK(CU(cuStreamWaitValue32)(stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuGraphLaunch)(exec, stream));
  const auto other = list.node(20);
  OK(CU(cuGraphExecKernelNodeSetParams)(exec, kernels[1], &other));
  OK(CU(cuGraphNodeSetEnabled)(exec, kernels[0], 0));
  write.writeValue.value = 2;
  OK(CU(cuGraphExecBatchMemOpNodeSetParams)(exec, fence_node, &fence));
  OK(CU(cuGraphLaunch)(exec, stream));
  CHECK(words[0] == 0);
  words[16] = 1;
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(words[0] == 2);
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3, 20, 3});

  unsigned enabled = 1;
  OK(CU(cuGraphNodeGetEnabled)(exec, kernels[0], &enabled));
  CHECK(enabled == 0);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_CASE("dependencies decide the order, and a cycle is refused", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUgraphNode nodes[3]{};
  for (unsigned i = 0; i < 3; ++i) {
    const auto parameters = list.node(i + 1);
    OK(CU(cuGraphAddKernelNode)(&nodes[i], graph, nullptr, 0, &parameters));
  }
  // 3 before 2 before 1
  const CUgraphNode from[] = {nodes[2], nodes[1]};
  const CUgraphNode to[] = {nodes[1], nodes[0]};
#if CUDA_VERSION >= 13000
  OK(CU(cuGraphAddDependencies)(graph, from, to, nullptr, 2));
#else
  OK(CU(cuGraphAddDependencies)(graph, from, to, 2));
#endif
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  CHECK(list.values() == std::vector<unsigned>{3, 2, 1});
  OK(CU(cuGraphExecDestroy)(exec));
  size_t count = 0;
  OK(CU(cuGraphGetRootNodes)(graph, nullptr, &count));
  CHECK(count == 1);
#if CUDA_VERSION >= 13000
  CHECK(CU(cuGraphAddDependencies)(graph, from, to, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);  // there already
  OK(CU(cuGraphAddDependencies)(graph, &nodes[0], &nodes[2], nullptr, 1));
#else
  CHECK(CU(cuGraphAddDependencies)(graph, from, to, 1) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphAddDependencies)(graph, &nodes[0], &nodes[2], 1));
#endif
  CHECK(CU(cuGraphInstantiate)(&exec, graph, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("copies and fills in a graph", "[forwarded]") {
  const DeviceContext context;
  DeviceArray<unsigned> source(64);
  DeviceArray<unsigned> destination(64);
  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = source.address();
  fill.value = 0x55;
  fill.elementSize = 4;
  fill.width = 64;
  fill.height = 1;
  CUgraphNode fill_node = nullptr;
  CUgraphNode copy_node = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&fill_node, graph, nullptr, 0, &fill, context.handle()));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source.address();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = destination.address();
  copy.WidthInBytes = 256;
  copy.Height = 1;
  copy.Depth = 1;
  OK(CU(cuGraphAddMemcpyNode)(&copy_node, graph, &fill_node, 1, &copy, context.handle()));
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(copy_node, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY);
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphDestroy)(graph));  // the exec does not need it
  OK(CU(cuGraphLaunch)(exec, nullptr));
  CHECK(destination[0] == 0x55);
  CHECK(destination[63] == 0x55);
  OK(CU(cuGraphExecDestroy)(exec));
}
