// SPDX-License-Identifier: Apache-2.0
// Memory nodes of graphs: added by hand and by capture, used by other nodes, left behind for the application.
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

#define NEEDS_GRAPH_MEMORY() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no memory nodes: they are made in the client")

constexpr unsigned kMemoryWords = 1024;

CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes = kMemoryWords * 4) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  params.bytesize = bytes;
  return params;
}

CUgraphNode add_fill(CUgraph graph, CUgraphNode before, CUdeviceptr to, unsigned value, CUcontext context) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = to;
  params.elementSize = 4;
  params.value = value;
  params.width = kMemoryWords;
  params.height = 1;
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddMemsetNode)(&node, graph, &before, 1, &params, context));
  return node;
}

std::vector<unsigned> words_at(CUdeviceptr address) {
  std::vector<unsigned> words(kMemoryWords);
  OK(CU(cuMemcpyDtoH)(words.data(), address, kMemoryWords * 4));
  return words;
}

// A graph that allocates, fills what it has allocated with 7, and leaves it.
struct Leaving {
  CUgraph graph = nullptr;
  CUdeviceptr memory = 0;
  explicit Leaving(CUcontext context) {
    OK(CU(cuGraphCreate)(&graph, 0));
    auto params = allocation();
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params));
    memory = params.dptr;
    add_fill(graph, node, memory, 7, context);
  }
};

cuuint64_t graph_memory_level(CUgraphMem_attribute attribute) {
  cuuint64_t value = ~cuuint64_t{0};
  OK(CU(cuDeviceGetGraphMemAttribute)(0, attribute, &value));
  return value;
}

}  // namespace

TEST_CASE("stream-ordered memory is allocated and freed within a captured graph", "[forwarded]") {
  const DeviceContext context;
  NEEDS_GRAPH_MEMORY();
  const CUstream stream = new_stream();
  DeviceArray<unsigned> first(kMemoryWords), second(kMemoryWords);
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (unsigned round = 0; round < 20; ++round) {
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, kMemoryWords * 4, stream));
    CHECK(memory != 0);
    OK(CU(cuMemsetD32Async)(memory, round, kMemoryWords, stream));
    OK(CU(cuMemcpyDtoDAsync)(round % 2 == 0 ? first.address() : second.address(), memory, kMemoryWords * 4, stream));
    OK(CU(cuMemFreeAsync)(memory, stream));
  }
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  size_t count = 0;
  OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
  CHECK(count == 80);
  std::vector<CUgraphNode> nodes(count);
  OK(CU(cuGraphGetNodes)(graph, nodes.data(), &count));
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(nodes[0], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  OK(CU(cuGraphNodeGetType)(nodes[3], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_FREE);
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  for (int launches = 0; launches < 3; ++launches) {
    OK(CU(cuMemsetD32)(first.address(), 99, kMemoryWords));
    OK(CU(cuCtxSynchronize)());
    OK(CU(cuGraphLaunch)(exec, stream));
    OK(CU(cuStreamSynchronize)(stream));
    CHECK(words_at(first.address()) == std::vector<unsigned>(kMemoryWords, 18));
    CHECK(words_at(second.address()) == std::vector<unsigned>(kMemoryWords, 19));
  }
  // One block served all of them.
  if (driver_kind() == DriverKind::forwarded) CHECK(graph_memory_level(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == kMemoryWords * 4);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuDeviceGraphMemTrim)(0));
  CHECK(graph_memory_level(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("branches of a graph do not share what they allocate", "[forwarded]") {
  const DeviceContext context;
  NEEDS_GRAPH_MEMORY();
  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUgraphNode nodes[3] = {}, freed = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params[3] = {allocation(), allocation(), allocation()};
  OK(CU(cuGraphAddMemAllocNode)(&nodes[0], graph, nullptr, 0, &params[0]));
  OK(CU(cuGraphAddMemFreeNode)(&freed, graph, &nodes[0], 1, params[0].dptr));
  OK(CU(cuGraphAddMemAllocNode)(&nodes[1], graph, nullptr, 0, &params[1]));  // beside the free
  CHECK(params[1].dptr != params[0].dptr);
  OK(CU(cuGraphAddMemAllocNode)(&nodes[2], graph, &freed, 1, &params[2]));  // behind it
  CHECK(params[2].dptr != params[1].dptr);
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("memory nodes answer with what they are, and refuse what is wrong", "[forwarded]") {
  const DeviceContext context;
  NEEDS_GRAPH_MEMORY();
  CUgraph graph = nullptr, other = nullptr, clone = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  CUgraphNode allocated = nullptr, freed = nullptr, node = nullptr;
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  auto params = allocation();
  params.accessDescs = &access;
  params.accessDescCount = 1;
  OK(CU(cuGraphAddMemAllocNode)(&allocated, graph, nullptr, 0, &params));
  CHECK(params.dptr != 0);
  const CUgraphNode fill = add_fill(graph, allocated, params.dptr, 3, context.handle());
  OK(CU(cuGraphAddMemFreeNode)(&freed, graph, &fill, 1, params.dptr));
  CUDA_MEM_ALLOC_NODE_PARAMS answer{};
  OK(CU(cuGraphMemAllocNodeGetParams)(allocated, &answer));
  CHECK(answer.dptr == params.dptr);
  CHECK(answer.bytesize == kMemoryWords * 4);
  CHECK(answer.accessDescCount == 1);
  CUdeviceptr address = 0;
  OK(CU(cuGraphMemFreeNodeGetParams)(freed, &address));
  CHECK(address == params.dptr);
  CHECK(CU(cuGraphMemAllocNodeGetParams)(fill, &answer) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphMemFreeNodeGetParams)(allocated, &address) == CUDA_ERROR_INVALID_VALUE);

  auto wrong = allocation(0);
  CHECK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &wrong) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphAddMemFreeNode)(&node, graph, &freed, 1, params.dptr) == CUDA_ERROR_INVALID_VALUE);  // again
  CHECK(CU(cuGraphAddMemFreeNode)(&node, graph, nullptr, 0, 0x1234) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGraphClone)(&clone, graph) != CUDA_SUCCESS);
  CHECK(CU(cuGraphDestroyNode)(fill) != CUDA_SUCCESS);
  OK(CU(cuGraphCreate)(&other, 0));
  CUgraphExec exec = nullptr, second = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  CHECK(CU(cuGraphInstantiate)(&second, graph, 0) != CUDA_SUCCESS);  // once at a time
  OK(CU(cuGraphLaunch)(exec, nullptr));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphInstantiate)(&second, graph, 0));
  OK(CU(cuGraphExecDestroy)(second));
  OK(CU(cuGraphDestroy)(other));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("what a graph leaves allocated is the application's until it is freed", "[forwarded]") {
  const DeviceContext context;
  NEEDS_GRAPH_MEMORY();
  const CUstream stream = new_stream();
  const Leaving leaving(context.handle());
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, leaving.graph, 0));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(graph_memory_level(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= kMemoryWords * 4);
  CHECK(words_at(leaving.memory) == std::vector<unsigned>(kMemoryWords, 7));
  CHECK(CU(cuGraphLaunch)(exec, stream) == CUDA_ERROR_INVALID_VALUE);  // not freed
  OK(CU(cuMemsetD32Async)(leaving.memory, 8, kMemoryWords, stream));
  OK(CU(cuMemFreeAsync)(leaving.memory, stream));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(words_at(leaving.memory) == std::vector<unsigned>(kMemoryWords, 7));
  // It outlives its graph.
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(leaving.graph));
  CHECK(words_at(leaving.memory) == std::vector<unsigned>(kMemoryWords, 7));
  OK(CU(cuMemFree)(leaving.memory));
  if (refuses_dead_handles()) CHECK(CU(cuMemFree)(leaving.memory) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuDeviceGraphMemTrim)(0));
  CHECK(graph_memory_level(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
  cuuint64_t zero = 0, one = 1;
  OK(CU(cuDeviceSetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  CHECK(CU(cuDeviceSetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceSetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a graph may free at each launch what it left at the one before, or another graph may", "[forwarded]") {
  const DeviceContext context;
  NEEDS_GRAPH_MEMORY();
  const CUstream stream = new_stream();
  const Leaving leaving(context.handle());
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiateWithFlags)(&exec, leaving.graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  for (int launches = 0; launches < 3; ++launches) OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(words_at(leaving.memory) == std::vector<unsigned>(kMemoryWords, 7));

  CUgraph freeing = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec free_it = nullptr;
  OK(CU(cuGraphCreate)(&freeing, 0));
  OK(CU(cuGraphAddMemFreeNode)(&node, freeing, nullptr, 0, leaving.memory));
  OK(CU(cuGraphInstantiate)(&free_it, freeing, 0));
  OK(CU(cuGraphLaunch)(free_it, stream));
  OK(CU(cuStreamSynchronize)(stream));
  if (refuses_dead_handles()) CHECK(CU(cuMemFree)(leaving.memory) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuGraphExecDestroy)(free_it));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(freeing));
  OK(CU(cuGraphDestroy)(leaving.graph));
  OK(CU(cuStreamDestroy)(stream));
}
