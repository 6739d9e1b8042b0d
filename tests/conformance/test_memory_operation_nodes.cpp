// SPDX-License-Identifier: Apache-2.0
// Nodes that are batches of memory operations, added to graphs and captured.
#include <chrono>
#include <thread>
#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

CUstreamBatchMemOpParams write_of(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  return operation;
}

CUstreamBatchMemOpParams wait_for(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS node_of(CUcontext context, std::vector<CUstreamBatchMemOpParams>& operations) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};
  parameters.ctx = context;
  parameters.count = static_cast<unsigned>(operations.size());
  parameters.paramArray = operations.data();
  return parameters;
}

}  // namespace

TEST_CASE("a node of memory operations stands between kernels", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  SharedWord gate;
  const DeviceArray<unsigned> words(2);
  const CUgraph graph = new_graph();
  const CUgraphNode first = list.add(graph, 1);
  std::vector<CUstreamBatchMemOpParams> operations = {write_of(words.address(), 5), wait_for(gate.address(), 7), write_of(words.address() + 4, 6)};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = node_of(context.handle(), operations);
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddBatchMemOpNode)(&node, graph, &first, 1, &parameters));
  list.add(graph, 2, {node});
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(node, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  const CUgraphExec exec = instantiated(graph);
  const CUstream stream = new_stream();
  for (int turn = 0; turn < 3; ++turn) {
    *gate = 0;
    list.clear();
    OK(CU(cuMemsetD32)(words.address(), 0, 2));
    OK(CU(cuCtxSynchronize)());
    OK(CU(cuGraphLaunch)(exec, stream));
    std::this_thread::sleep_for(20ms);
    CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
    *gate = 7;
    OK(CU(cuStreamSynchronize)(stream));
    CHECK(list.values() == std::vector<unsigned>{1, 2});
    CHECK(words[0] == 5);
    CHECK(words[1] == 6);
  }
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("launches of a graph with a wait follow each other in whatever streams", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  SharedWord gate;
  const CUgraph graph = new_graph();
  std::vector<CUstreamBatchMemOpParams> operations = {wait_for(gate.address(), 1)};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = node_of(context.handle(), operations);
  CUgraphNode node = nullptr;
  const CUgraphNode first = list.add(graph, 1);
  OK(CU(cuGraphAddBatchMemOpNode)(&node, graph, &first, 1, &parameters));
  const CUgraphExec exec = instantiated(graph);
  const CUstream streams[] = {new_stream(), new_stream()};
  for (const CUstream stream : streams) OK(CU(cuGraphLaunch)(exec, stream));
  std::this_thread::sleep_for(20ms);
  CHECK(CU(cuStreamQuery)(streams[0]) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(streams[1]) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuCtxSynchronize)());
  CHECK(list.values() == std::vector<unsigned>{1, 1});
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("a node of memory operations is asked and changed", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver's nodes cannot be asked");
  const DeviceContext context;
  const DeviceArray<unsigned> words(2);
  const CUgraph graph = new_graph();
  std::vector<CUstreamBatchMemOpParams> operations = {write_of(words.address(), 5), write_of(words.address() + 4, 6)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = node_of(context.handle(), operations);
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &parameters));
  CUDA_BATCH_MEM_OP_NODE_PARAMS found{};
  OK(CU(cuGraphBatchMemOpNodeGetParams)(node, &found));
  REQUIRE(found.count == 2);
  CHECK(found.ctx == context.handle());
  CHECK(found.flags == 0);
  CHECK(found.paramArray[1].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32);
  CHECK(found.paramArray[1].writeValue.address == words.address() + 4);
  CHECK(found.paramArray[1].writeValue.value == 6);
  const CUgraphExec before = instantiated(graph);
  operations[1].writeValue.value = 16;
  OK(CU(cuGraphBatchMemOpNodeSetParams)(node, &parameters));
  const CUgraphExec after = instantiated(graph);
  OK(CU(cuGraphLaunch)(before, nullptr));
  OK(CU(cuCtxSynchronize)());
  CHECK(words[1] == 6);
  OK(CU(cuGraphLaunch)(after, nullptr));
  OK(CU(cuCtxSynchronize)());
  CHECK(words[1] == 16);
  operations[0].writeValue.value = 25;
  OK(CU(cuGraphExecBatchMemOpNodeSetParams)(before, node, &parameters));
  OK(CU(cuGraphLaunch)(before, nullptr));
  OK(CU(cuCtxSynchronize)());
  CHECK(words[0] == 25);
  // Neither how many nor what they do.
  parameters.count = 1;
  CHECK(CU(cuGraphExecBatchMemOpNodeSetParams)(before, node, &parameters) == CUDA_ERROR_INVALID_VALUE);
  parameters.count = 2;
  operations[0] = wait_for(words.address(), 0);
  CHECK(CU(cuGraphExecBatchMemOpNodeSetParams)(before, node, &parameters) == CUDA_ERROR_INVALID_VALUE);
  for (const CUgraphExec exec : {before, after}) OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("nodes of memory operations that cannot be", "[forwarded]") {
  const DeviceContext context;
  const DeviceArray<unsigned> words(2);
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  std::vector<CUstreamBatchMemOpParams> operations = {write_of(words.address() + 2, 5)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = node_of(context.handle(), operations);
  CHECK(CU(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE);
  operations[0] = write_of(words.address(), 5);
  parameters.flags = 1;
  CHECK(CU(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE);
  parameters.flags = 0;
  parameters.count = 257;
  CHECK(CU(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE);
  parameters.count = 1;
  CHECK(CU(cuGraphAddBatchMemOpNode)(nullptr, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &parameters));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("captured memory operations are nodes", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver captures nothing: libmpsshim.so does");
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  SharedWord gate;
  const DeviceArray<unsigned> words(4);
  const CUstream stream = new_stream();
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(list.launch_one(stream, 1));
  OK(CU(cuStreamWriteValue32)(stream, words.address(), 3, 0));
  OK(CU(cuStreamWaitValue32)(stream, gate.address(), 9, CU_STREAM_WAIT_VALUE_EQ));
  std::vector<CUstreamBatchMemOpParams> operations = {write_of(words.address() + 4, 4), write_of(words.address() + 8, 5)};
  OK(CU(cuStreamBatchMemOp)(stream, 2, operations.data(), 0));
  OK(list.launch_one(stream, 2));
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  size_t count = 0;
  OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
  CHECK(count == 5);
  CHECK(words[0] == 0);
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphLaunch)(exec, stream));
  std::this_thread::sleep_for(20ms);
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
  *gate = 9;
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(list.values() == std::vector<unsigned>{1, 2});
  CHECK(words[0] == 3);
  CHECK(words[1] == 4);
  CHECK(words[2] == 5);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}
