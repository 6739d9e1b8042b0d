// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

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
