// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
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

namespace {

CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(node, &type));
  return type;
}

void launch_and_wait(CUgraphExec exec, CUstream stream = nullptr) {
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
}

CUresult add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
#if CUDA_VERSION >= 13000
  return CU(cuGraphAddDependencies)(graph, from, to, nullptr, count);
#else
  return CU(cuGraphAddDependencies)(graph, from, to, count);
#endif
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count, CUgraphNodeParams* params) {
#if CUDA_VERSION >= 13000
  return CU(cuGraphAddNode)(node, graph, behind, nullptr, count, params);
#else
  return CU(cuGraphAddNode)(node, graph, behind, count, params);
#endif
}

CUDA_KERNEL_NODE_PARAMS_v3 newest(const CUDA_KERNEL_NODE_PARAMS& p) {
  CUDA_KERNEL_NODE_PARAMS_v3 params{};
  params.func = p.func;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = p.kernelParams;
  return params;
}

CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr address, unsigned value, size_t width) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = address;
  fill.value = value;
  fill.elementSize = 4;
  fill.width = width;
  fill.height = 1;
  return fill;
}

CUDA_MEMCPY3D copy_of(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source;
  copy.dstDevice = destination;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

#define SKIP_ON_CPU_DRIVER() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has what the executor needs of graphs")

}  // namespace

TEST_CASE("nodes of every kind, added by the general function", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  DeviceArray<unsigned> first(64), second(64);
  const CUevent event = new_event();
  const CUgraph graph = new_graph();
  const CUgraph inner = new_graph();
  list.add(inner, 2);
  CUgraphNode nodes[7]{};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_EMPTY;
  OK(add_node(&nodes[0], graph, nullptr, 0, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = newest(list.node(1));
  OK(add_node(&nodes[1], graph, &nodes[0], 1, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = inner;
  OK(add_node(&nodes[2], graph, &nodes[1], 1, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset = {first.address(), 0, 5, 4, 64, 1, context.handle()};
  OK(add_node(&nodes[3], graph, &nodes[2], 1, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyCtx = context.handle();
  params.memcpy.copyParams = copy_of(second.address(), first.address(), 256);
  OK(add_node(&nodes[4], graph, &nodes[3], 1, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  params.eventWait.event = event;
  OK(add_node(&nodes[5], graph, nullptr, 0, &params));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  params.eventRecord.event = event;
  OK(add_node(&nodes[6], graph, &nodes[4], 2, &params));
  constexpr CUgraphNodeType kTypes[] = {CU_GRAPH_NODE_TYPE_EMPTY,       CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_GRAPH,
                                        CU_GRAPH_NODE_TYPE_MEMSET,      CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                                        CU_GRAPH_NODE_TYPE_EVENT_RECORD};
  for (size_t i = 0; i < 7; ++i) CHECK(type_of(nodes[i]) == kTypes[i]);
  CUgraphNode found[9]{};
  size_t count = 9;
  OK(CU(cuGraphGetNodes)(graph, found, &count));
  CHECK(count == 7);
  CHECK((found[6] != nullptr && found[7] == nullptr && found[8] == nullptr));
  count = 1;
  OK(CU(cuGraphGetRootNodes)(graph, found, &count));
  CHECK(count == 1);
  OK(CU(cuGraphGetRootNodes)(graph, nullptr, &count));
  CHECK(count == 2);
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphDestroy)(inner));  // the node has a clone
  launch_and_wait(exec);
  CHECK(list.values() == std::vector<unsigned>{1, 2});
  CHECK(second[63] == 5);
  OK(CU(cuEventQuery)(event));
  params = {};
  const int unknown = 99;
  std::memcpy(&params.type, &unknown, sizeof params.type);
  CHECK(add_node(&nodes[0], graph, nullptr, 0, &params) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuEventDestroy)(event));
}

TEST_CASE("edges come and go", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const CUgraph graph = new_graph();
  CUgraphNode nodes[3]{};
  for (CUgraphNode& node : nodes) OK(CU(cuGraphAddEmptyNode)(&node, graph, nullptr, 0));
  const CUgraphNode from[] = {nodes[0], nodes[0], nodes[1]};
  const CUgraphNode to[] = {nodes[1], nodes[2], nodes[2]};
  OK(add_edges(graph, from, to, 3));
  CUgraphNode first[4]{}, second[4]{};
  size_t count = 4;
#if CUDA_VERSION >= 13000
  OK(CU(cuGraphGetEdges)(graph, first, second, nullptr, &count));
#else
  OK(CU(cuGraphGetEdges)(graph, first, second, &count));
#endif
  CHECK(count == 3);
  CHECK((first[3] == nullptr && second[3] == nullptr));
  const auto dependencies = [&](CUgraphNode node, bool dependents) {
    size_t found = 0;
#if CUDA_VERSION >= 13000
    OK(dependents ? CU(cuGraphNodeGetDependentNodes)(node, nullptr, nullptr, &found)
                  : CU(cuGraphNodeGetDependencies)(node, nullptr, nullptr, &found));
#else
    OK(dependents ? CU(cuGraphNodeGetDependentNodes)(node, nullptr, &found) : CU(cuGraphNodeGetDependencies)(node, nullptr, &found));
#endif
    return found;
  };
  CHECK(dependencies(nodes[0], true) == 2);
  CHECK(dependencies(nodes[2], false) == 2);
#if CUDA_VERSION >= 13000
  OK(CU(cuGraphRemoveDependencies)(graph, from, to, nullptr, 1));
  CHECK(CU(cuGraphRemoveDependencies)(graph, from, to, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
#else
  OK(CU(cuGraphRemoveDependencies)(graph, from, to, 1));
  CHECK(CU(cuGraphRemoveDependencies)(graph, from, to, 1) == CUDA_ERROR_INVALID_VALUE);
#endif
  CHECK(dependencies(nodes[1], false) == 0);
  CHECK(add_edges(graph, nodes, nodes, 1) == CUDA_ERROR_INVALID_VALUE);  // of a node to itself
  OK(CU(cuGraphDestroyNode)(nodes[2]));
  CHECK(dependencies(nodes[0], true) == 0);
  CHECK(node_count(graph) == 2);
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("parameters of nodes are answered as they were given, and can be changed", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  DeviceArray<unsigned> memory(64), other(64);
  const CUgraph graph = new_graph();
  const CUgraphNode kernel = list.add(graph, 1);
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(CU(cuGraphKernelNodeGetParams)(kernel, &got));
  CHECK(got.func == list.function());
  CHECK((got.gridDimX == 1 && got.blockDimX == 1 && got.sharedMemBytes == 0));
  REQUIRE(got.kernelParams != nullptr);
  CHECK(*static_cast<unsigned*>(got.kernelParams[2]) == 1);
  auto changed = list.node(8);
  changed.blockDimX = 1;
  OK(CU(cuGraphKernelNodeSetParams)(kernel, &changed));
  OK(CU(cuGraphKernelNodeGetParams)(kernel, &got));
  CHECK(*static_cast<unsigned*>(got.kernelParams[2]) == 8);

  CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory.address(), 3, 64);
  CUgraphNode fill_node = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&fill_node, graph, nullptr, 0, &fill, context.handle()));
  fill.value = 4;
  OK(CU(cuGraphMemsetNodeSetParams)(fill_node, &fill));
  CUDA_MEMSET_NODE_PARAMS filled{};
  OK(CU(cuGraphMemsetNodeGetParams)(fill_node, &filled));
  CHECK((filled.dst == memory.address() && filled.value == 4 && filled.width == 64 && filled.elementSize == 4));

  CUDA_MEMCPY3D copy = copy_of(other.address(), memory.address(), 128);
  CUgraphNode copy_node = nullptr;
  OK(CU(cuGraphAddMemcpyNode)(&copy_node, graph, &fill_node, 1, &copy, context.handle()));
  copy.WidthInBytes = 256;
  OK(CU(cuGraphMemcpyNodeSetParams)(copy_node, &copy));
  CUDA_MEMCPY3D copied{};
  OK(CU(cuGraphMemcpyNodeGetParams)(copy_node, &copied));
  CHECK((copied.srcDevice == memory.address() && copied.dstDevice == other.address() && copied.WidthInBytes == 256));

  const CUgraphExec exec = instantiated(graph);
  launch_and_wait(exec);
  CHECK(list.values() == std::vector<unsigned>{8});
  CHECK(other[63] == 4);
  CHECK(CU(cuGraphMemcpyNodeGetParams)(fill_node, &copied) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphKernelNodeSetParams)(fill_node, &changed) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("two-dimensional copies in a graph", "[forwarded]") {
  const DeviceContext context;
  DeviceArray<unsigned> source(64), destination(64);
  const CUgraph graph = new_graph();
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = source.address() + 8;
  fill.pitch = 32;
  fill.value = 0xab;
  fill.elementSize = 1;
  fill.width = 4;
  fill.height = 3;
  CUgraphNode fill_node = nullptr, copy_node = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&fill_node, graph, nullptr, 0, &fill, context.handle()));
  CUDA_MEMCPY3D copy = copy_of(destination.address(), source.address(), 8);
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.srcPitch = 32;
  copy.dstPitch = 16;
  copy.dstXInBytes = 4;
  copy.Height = 2;
  OK(CU(cuGraphAddMemcpyNode)(&copy_node, graph, &fill_node, 1, &copy, context.handle()));
  const CUgraphExec exec = instantiated(graph);
  launch_and_wait(exec);
  CHECK((source[2] == 0xabababab && source[10] == 0xabababab && source[18] == 0xabababab && source[3] == 0 && source[26] == 0));
  CHECK((destination[1] == 0 && destination[2] == 0xabababab && destination[3] == 0 && destination[6] == 0xabababab && destination[10] == 0));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("updates of an executable graph count for its next launches", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  DeviceArray<unsigned> memory(64), other(64);
  const SharedWord gate;
  const CUfunction spin = image.function("spin");
  const CUgraph graph = new_graph();
  const CUgraphNode one = list.add(graph, 1);
  const CUgraphNode two = list.add(graph, 2, {one});
  CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory.address(), 1, 64);
  CUgraphNode fill_node = nullptr, copy_node = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&fill_node, graph, &two, 1, &fill, context.handle()));
  CUDA_MEMCPY3D copy = copy_of(other.address(), memory.address(), 16);
  OK(CU(cuGraphAddMemcpyNode)(&copy_node, graph, &fill_node, 1, &copy, context.handle()));
  const CUgraphExec exec = instantiated(graph);
  const CUstream stream = new_stream();
  const CUstream second = new_stream();
  // Held back, so that the first launch is still queued when the graph changes. The second goes to another stream and comes after it all the same.
  OK(launch(spin, stream, 1, 1, gate.address()));
  OK(CU(cuGraphLaunch)(exec, stream));
  const auto parameters = list.node(20);
  OK(CU(cuGraphExecKernelNodeSetParams)(exec, two, &parameters));
  OK(CU(cuGraphNodeSetEnabled)(exec, one, 0));
  fill.value = 6;
  OK(CU(cuGraphExecMemsetNodeSetParams)(exec, fill_node, &fill, context.handle()));
  copy = copy_of(other.address() + 16, memory.address(), 16);
  OK(CU(cuGraphExecMemcpyNodeSetParams)(exec, copy_node, &copy, context.handle()));
  OK(CU(cuGraphLaunch)(exec, second));
  gate.wait_for_spinning();
  *const_cast<SharedWord&>(gate) = 1;
  OK(CU(cuStreamSynchronize)(second));
  CHECK(list.values() == std::vector<unsigned>{1, 2, 20});
  CHECK((other[0] == 1 && other[3] == 1 && other[4] == 6 && other[7] == 6));
  unsigned enabled = 1;
  OK(CU(cuGraphNodeGetEnabled)(exec, one, &enabled));
  CHECK(enabled == 0);
  CHECK(CU(cuGraphExecKernelNodeSetParams)(exec, fill_node, &parameters) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuStreamDestroy)(second));
}

TEST_CASE("a whole graph updates an executable one of the same shape", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const auto chain = [&](unsigned base, unsigned length) {
    const CUgraph graph = new_graph();
    CUgraphNode last = nullptr;
    for (unsigned i = 0; i < length; ++i) last = list.add(graph, base + i, last != nullptr ? std::vector{last} : std::vector<CUgraphNode>{});
    return graph;
  };
  const CUgraph graph = chain(1, 3);
  const CUgraphExec exec = instantiated(graph);
  launch_and_wait(exec);
  const CUgraph same = chain(11, 3);
  const CUgraph longer = chain(21, 4);
  const CUgraph unordered = new_graph();
  for (unsigned i = 0; i < 3; ++i) list.add(unordered, 31 + i);
  const CUgraph of_other_nodes = new_graph();
  for (unsigned i = 0; i < 3; ++i) {
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddEmptyNode)(&node, of_other_nodes, nullptr, 0));
  }
  CUgraphExecUpdateResultInfo info{};
  OK(CU(cuGraphExecUpdate)(exec, same, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CHECK(CU(cuGraphExecUpdate)(exec, longer, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CHECK(CU(cuGraphExecUpdate)(exec, unordered, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CHECK(CU(cuGraphExecUpdate)(exec, of_other_nodes, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  launch_and_wait(exec);
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3, 11, 12, 13});
  OK(CU(cuGraphExecDestroy)(exec));
  for (const CUgraph one : {graph, same, longer, unordered, of_other_nodes}) OK(CU(cuGraphDestroy)(one));
}

TEST_CASE("child graphs run where their node stands, and can be exchanged", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph inner = new_graph();
  list.add(inner, 2, {list.add(inner, 1)});
  const CUgraph graph = new_graph();
  CUgraphNode child = nullptr;
  const CUgraphNode before = list.add(graph, 10);
  OK(CU(cuGraphAddChildGraphNode)(&child, graph, &before, 1, inner));
  list.add(graph, 11, {child});
  CUgraph held = nullptr;
  OK(CU(cuGraphChildGraphNodeGetGraph)(child, &held));
  CHECK(held != inner);
  CHECK(node_count(held) == 2);
  CHECK(CU(cuGraphChildGraphNodeGetGraph)(before, &held) == CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiated(graph);
  launch_and_wait(exec);
  const CUgraph next = new_graph();
  list.add(next, 4, {list.add(next, 3)});
  OK(CU(cuGraphExecChildGraphNodeSetParams)(exec, child, next));
  list.add(next, 5);
  CHECK(CU(cuGraphExecChildGraphNodeSetParams)(exec, child, next) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  launch_and_wait(exec);
  CHECK(list.values() == std::vector<unsigned>{10, 1, 2, 11, 10, 3, 4, 11});
  OK(CU(cuGraphExecDestroy)(exec));
  for (const CUgraph one : {graph, inner, next}) OK(CU(cuGraphDestroy)(one));
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

namespace {

// What host functions and kernels have done, in this order.
struct Story {
  const unsigned* seen_by_host;
  std::vector<unsigned> values;
};

void note(void* data) {
  auto& story = *static_cast<Story*>(data);
  story.values.push_back(*story.seen_by_host);
}

}  // namespace

TEST_CASE("host functions of a graph run between its kernels", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  SharedWord word;
  const CUfunction add = image.function("add_to");
  CUdeviceptr where = word.address();
  unsigned one = 1;
  void* arguments[] = {&where, &one};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = add;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  Story story{reinterpret_cast<const unsigned*>(word.address()), {}};
  CUDA_HOST_NODE_PARAMS host{};
  host.fn = note;
  host.userData = &story;
  const CUgraph graph = new_graph();
  CUgraphNode first = nullptr, between = nullptr, second = nullptr, last = nullptr;
  OK(CU(cuGraphAddKernelNode)(&first, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphAddHostNode)(&between, graph, &first, 1, &host));
  OK(CU(cuGraphAddKernelNode)(&second, graph, &between, 1, &kernel));
  OK(CU(cuGraphAddHostNode)(&last, graph, &second, 1, &host));
  CHECK(type_of(last) == CU_GRAPH_NODE_TYPE_HOST);
  CUDA_HOST_NODE_PARAMS got{};
  OK(CU(cuGraphHostNodeGetParams)(last, &got));
  CHECK((got.fn == note && got.userData == &story));
  const CUgraphExec exec = instantiated(graph);
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  for (int i = 0; i < 20; ++i) OK(CU(cuGraphLaunch)(exec, i % 3 == 0 ? other : stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuStreamSynchronize)(other));
  REQUIRE(story.values.size() == 40);
  for (unsigned i = 0; i < 40; ++i) CHECK(story.values[i] == i + 1);
  // Another function, from the next launch on.
  static std::atomic<int> calls;
  calls = 0;
  host.fn = [](void*) { ++calls; };
  OK(CU(cuGraphExecHostNodeSetParams)(exec, last, &host));
  launch_and_wait(exec, stream);
  CHECK(calls == 1);
  CHECK(story.values.size() == 41);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuStreamDestroy)(other));
}

TEST_CASE("a captured graph with pageable memory and a host function", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  constexpr unsigned kWords = 100'000;
  DeviceArray<unsigned> memory(kWords);
  std::vector<unsigned> in(kWords), out(kWords);
  const CUstream stream = new_stream();
  struct Result {
    const std::vector<unsigned>* out;
    unsigned long long sum;
  } result{&out, 0};
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuMemcpyHtoDAsync)(memory.address(), in.data(), kWords * 4, stream));
  OK(launch(image.function("add_to"), stream, 1, 1, memory.address(), 100u));
  OK(CU(cuMemcpyDtoHAsync)(out.data(), memory.address(), kWords * 4, stream));
  const CUhostFn add_up = [](void* data) {
    auto& sum = *static_cast<Result*>(data);
    for (const unsigned word : *sum.out) sum.sum += word;
  };
  OK(CU(cuLaunchHostFunc)(stream, add_up, &result));
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  CHECK(node_count(graph) == 4);
  CHECK(result.sum == 0);
  const CUgraphExec exec = instantiated(graph);
  for (unsigned round = 1; round <= 3; ++round) {
    // What the memory holds when the graph runs is what counts, not what it held when it was made.
    std::fill(in.begin(), in.end(), round);
    result.sum = 0;
    launch_and_wait(exec, stream);
    CHECK(out[0] == round + 100);
    CHECK(out[kWords - 1] == round);
    CHECK(result.sum == 100 + static_cast<unsigned long long>(round) * kWords);
  }
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("two-dimensional copies between pageable and device memory in a graph", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  DeviceArray<unsigned> memory(64);
  std::vector<unsigned> in(64), out(64, 9);
  for (unsigned i = 0; i < 64; ++i) in[i] = i;
  const CUgraph graph = new_graph();
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = in.data();
  copy.srcPitch = 32;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory.address();
  copy.dstPitch = 16;
  copy.WidthInBytes = 8;
  copy.Height = 3;
  copy.Depth = 1;
  CUgraphNode up = nullptr, down = nullptr;
  OK(CU(cuGraphAddMemcpyNode)(&up, graph, nullptr, 0, &copy, context.handle()));
  copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory.address();
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = out.data();
  copy.dstPitch = 24;
  copy.WidthInBytes = 8;
  copy.Height = 3;
  copy.Depth = 1;
  OK(CU(cuGraphAddMemcpyNode)(&down, graph, &up, 1, &copy, context.handle()));
  const CUgraphExec exec = instantiated(graph);
  launch_and_wait(exec);
  CHECK((out[0] == in[9] && out[1] == in[10] && out[2] == 9 && out[6] == in[17] && out[7] == in[18] && out[12] == in[25] && out[14] == 9));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}
