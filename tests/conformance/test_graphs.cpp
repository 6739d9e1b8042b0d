// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "graph_calls.hpp"
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

TEST_CASE("a clone is a graph of its own", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph graph = new_graph();
  const CUgraphNode one = list.add(graph, 1);
  list.add(graph, 2, {one});
  CUgraph clone = nullptr;
  OK(CU(cuGraphClone)(&clone, graph));
  CUgraphNode found = nullptr;
  OK(CU(cuGraphNodeFindInClone)(&found, one, clone));
  CHECK(found != one);
  CHECK(CU(cuGraphNodeFindInClone)(&found, one, graph) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphNodeFindInClone)(&found, one, clone));
  const auto parameters = list.node(7);
  OK(CU(cuGraphKernelNodeSetParams)(found, &parameters));
  OK(CU(cuGraphDestroy)(graph));
  const CUgraphExec exec = instantiated(clone);
  launch_and_wait(exec);
  CHECK(list.values() == std::vector<unsigned>{7, 2});
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(clone));
}

TEST_CASE("a graph of thousands of nodes", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  DeviceArray<unsigned> sum(1);
  constexpr unsigned kNodes = 3000;
  const CUgraph graph = new_graph();
  CUdeviceptr where = sum.address();
  unsigned value = 1;
  void* arguments[] = {&where, &value};
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = image.function("add_to");
  parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.kernelParams = arguments;
  std::vector<CUgraphNode> nodes(kNodes);
  for (unsigned i = 0; i < kNodes; ++i) {
    // A tree, and one node behind all others.
    const bool is_last = i + 1 == kNodes;
    OK(CU(cuGraphAddKernelNode)(&nodes[i], graph, is_last ? nodes.data() : &nodes[i / 2], is_last ? i : i == 0 ? 0 : 1, &parameters));
  }
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphUpload)(exec, nullptr));
  launch_and_wait(exec);
  launch_and_wait(exec);
  CHECK(sum[0] == 2 * kNodes);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("user objects live as long as graphs refer to them", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  static std::atomic<int> ended;
  ended = 0;
  CUuserObject object = nullptr;
  const CUhostFn destroy = [](void* data) { ended += static_cast<int>(reinterpret_cast<intptr_t>(data)); };
  CHECK(CU(cuUserObjectCreate)(&object, reinterpret_cast<void*>(7), destroy, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuUserObjectCreate)(&object, reinterpret_cast<void*>(7), destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddEmptyNode)(&node, graph, nullptr, 0));
  OK(CU(cuGraphRetainUserObject)(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(CU(cuUserObjectRelease)(object, 1));
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphDestroy)(graph));
  launch_and_wait(exec);
  CHECK(ended == 0);
  OK(CU(cuGraphExecDestroy)(exec));
  for (int i = 0; i < 10'000 && ended == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the driver has a thread for it
  CHECK(ended == 7);
}

TEST_CASE("a graph can be printed", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph graph = new_graph();
  list.add(graph, 2, {list.add(graph, 1)});
  const std::string path = "/tmp/mpsshim-graph-" + std::to_string(getpid()) + ".dot";
  OK(CU(cuGraphDebugDotPrint)(graph, path.c_str(), 0));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  CHECK(text.find("digraph") != std::string::npos);
  CHECK(text.find("->") != std::string::npos);
  unlink(path.c_str());
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("a launch of a graph cannot be captured", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph graph = new_graph();
  list.add(graph, 1);
  const CUgraphExec exec = instantiated(graph);
  const CUstream stream = new_stream();
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(CU(cuGraphLaunch)(exec, stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph captured = nullptr;
  CHECK(CU(cuStreamEndCapture)(stream, &captured) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(captured == nullptr);
  launch_and_wait(exec, stream);
  CHECK(list.values() == std::vector<unsigned>{1});
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("wrong arguments of graph calls", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  DeviceArray<unsigned> memory(64);
  CUgraph graph = new_graph();
  CUgraph other = new_graph();
  CUgraphNode node = nullptr, foreign = nullptr;
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphAddEmptyNode)(&foreign, other, nullptr, 0));
  CHECK(CU(cuGraphCreate)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphCreate)(&graph, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddEmptyNode)(nullptr, graph, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddEmptyNode)(&node, graph, &foreign, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddEmptyNode)(&node, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode twice[] = {foreign, foreign};
  CHECK(CU(cuGraphAddEmptyNode)(&node, other, twice, 2) == CUDA_ERROR_INVALID_VALUE);
  auto parameters = list.node(1);
  parameters.blockDimX = 4096;
  CHECK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  parameters = {};
  CHECK(CU(cuGraphAddKernelNode)(&node, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_HANDLE);
  auto fill = fill_of(memory.address(), 1, 64);
  fill.elementSize = 3;
  CHECK(CU(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &fill, context.handle()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphInstantiateWithFlags)(nullptr, graph, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphInstantiateWithFlags)(&exec, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 1ull << 40) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphLaunch)(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphExecDestroy)(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphNodeGetType)(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphDestroy)(other));
  if (refuses_dead_handles()) {
    CHECK(CU(cuGraphDestroy)(other) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuGraphDestroyNode)(foreign) == CUDA_ERROR_INVALID_VALUE);
    // Memory of nobody's.
    fill = fill_of(memory.address() + (1ull << 40), 1, 64);
    CHECK(CU(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &fill, context.handle()) == CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuGraphDestroy)(graph));
}
