// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "graph_calls.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

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
