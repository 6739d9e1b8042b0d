// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

CUDA_KERNEL_NODE_PARAMS_v3 newest(const CUDA_KERNEL_NODE_PARAMS& p) {
  CUDA_KERNEL_NODE_PARAMS_v3 params{};
  params.func = p.func;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = p.kernelParams;
  return params;
}

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
