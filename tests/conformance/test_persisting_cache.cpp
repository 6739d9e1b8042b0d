// SPDX-License-Identifier: Apache-2.0
// L2 lines that stay: how much of the cache is set aside for them, and access policy windows of streams, launches and graphs' kernel nodes.
// (CUDA Programming Guide, "L2 Cache Control".)
#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

size_t most_bytes() {
  int most = 0;
  OK(CU(cuDeviceGetAttribute)(&most, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 0));
  return static_cast<size_t>(most);
}

size_t set_aside() {
  size_t bytes = 0;
  OK(CU(cuCtxGetLimit)(&bytes, CU_LIMIT_PERSISTING_L2_CACHE_SIZE));
  return bytes;
}

CUaccessPolicyWindow window_over(CUdeviceptr memory, size_t bytes) {
  CUaccessPolicyWindow window{};
  window.base_ptr = reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr)
  window.num_bytes = bytes;
  window.hitRatio = 1;
  window.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  window.missProp = CU_ACCESS_PROPERTY_STREAMING;
  return window;
}

#define SKIP_WITHOUT_PERSISTING_LINES() \
  if (most_bytes() == 0) MPSSHIM_SKIP("the device sets no cache aside")

}  // namespace

TEST_CASE("a context's persisting cache is as large as it was set, in sixteenths of the cache, and bounded by the device", "[forwarded]") {
  const DeviceContext context;
  SKIP_WITHOUT_PERSISTING_LINES();
  int cache = 0;
  OK(CU(cuDeviceGetAttribute)(&cache, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 0));
  const size_t share = static_cast<size_t>(cache) / 16;
  const size_t before = set_aside();
  CHECK(before % share == 0);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1));
  CHECK(set_aside() == share);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, share + 1));
  CHECK(set_aside() == 2 * share);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most_bytes() - 1));
  CHECK(set_aside() == most_bytes());
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 5 * share));
  CHECK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most_bytes() + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(set_aside() == 5 * share);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most_bytes()));
  CHECK(set_aside() == most_bytes());
  OK(CU(cuCtxResetPersistingL2Cache)());
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0));
  CHECK(set_aside() == 0);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, before));
}

TEST_CASE("access policy windows go with streams, launches and nodes", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no stream attributes");
  const DeviceContext context;
  SKIP_WITHOUT_PERSISTING_LINES();
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most_bytes()));
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  OK(CU(cuMemAlloc)(&memory, 1 << 20));

  CUstreamAttrValue of_stream{};
  of_stream.accessPolicyWindow = window_over(memory, 1 << 20);
  OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_stream));
  OK(list.launch_one(stream, 1));
  CUlaunchAttribute of_launch{};
  of_launch.id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
  of_launch.value.accessPolicyWindow = window_over(memory, 1 << 16);
  CUDA_KERNEL_NODE_PARAMS kernel = list.node(2);
  const CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, &of_launch, 1};
  OK(CU(cuLaunchKernelEx)(&config, kernel.func, kernel.kernelParams, nullptr));

  CUgraph graph = nullptr;
  OK(CU(cuGraphCreate)(&graph, 0));
  const CUgraphNode node = list.add(graph, 3);
  CUkernelNodeAttrValue of_node{};
  of_node.accessPolicyWindow = window_over(memory, 1 << 16);
  OK(CU(cuGraphKernelNodeSetAttribute)(node, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_node));
  CUkernelNodeAttrValue found{};
  OK(CU(cuGraphKernelNodeGetAttribute)(node, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &found));
  CHECK(found.accessPolicyWindow.num_bytes == 1 << 16);
  CHECK(found.accessPolicyWindow.hitProp == CU_ACCESS_PROPERTY_PERSISTING);
  const CUgraphExec exec = instantiated(graph);
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));

  // The window stays with the stream when the memory has gone.
  OK(CU(cuMemFree)(memory));
  OK(list.launch_one(stream, 4));
  // A host allocation is in no device's memory, and no kernel minds.
  const SharedWord host;
  of_stream.accessPolicyWindow = window_over(host.address(), sizeof(unsigned));
  OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_stream));
  OK(list.launch_one(stream, 5));
  of_stream.accessPolicyWindow = {};
  of_stream.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_stream));  // none any more
  OK(list.launch_one(stream, 6));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuCtxResetPersistingL2Cache)());
  CHECK(list.values() == std::vector<unsigned>{1, 2, 3, 4, 5, 6});
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuCtxSetLimit)(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0));
}

TEST_CASE("access policy windows that no device has are refused where they are given", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no stream attributes");
  const DeviceContext context;
  SKIP_WITHOUT_PERSISTING_LINES();
  int largest = 0;
  OK(CU(cuDeviceGetAttribute)(&largest, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 0));
  const LoadedImage image;
  KernelList list(image);
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  OK(CU(cuMemAlloc)(&memory, 1 << 20));

  const CUaccessPolicyWindow too_large = window_over(memory, static_cast<size_t>(largest) + 4096);
  CUaccessPolicyWindow too_often = window_over(memory, 1 << 16);
  too_often.hitRatio = 2;
  CUaccessPolicyWindow missing_persists = window_over(memory, 1 << 16);
  missing_persists.missProp = CU_ACCESS_PROPERTY_PERSISTING;
  const CUDA_KERNEL_NODE_PARAMS kernel = list.node(1);
  for (const CUaccessPolicyWindow& window : {too_large, too_often, missing_persists}) {
    CUstreamAttrValue of_stream{};
    of_stream.accessPolicyWindow = window;
    CHECK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_stream) == CUDA_ERROR_INVALID_VALUE);
    CUlaunchAttribute of_launch{};
    of_launch.id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
    of_launch.value.accessPolicyWindow = window;
    const CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, &of_launch, 1};
    CHECK(CU(cuLaunchKernelEx)(&config, kernel.func, kernel.kernelParams, nullptr) == CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(list.values().empty());
  // One that reaches beyond its memory, or lies where none is, is nobody's concern.
  for (const CUaccessPolicyWindow& window : {window_over(memory, 8 << 20), window_over(0x1000, 4096), window_over(memory, 4096)}) {
    CUstreamAttrValue of_stream{};
    of_stream.accessPolicyWindow = window;
    OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &of_stream));
    OK(list.launch_one(stream, 7));
  }
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(list.values() == std::vector<unsigned>{7, 7, 7});
  OK(CU(cuMemFree)(memory));
  OK(CU(cuStreamDestroy)(stream));
}
