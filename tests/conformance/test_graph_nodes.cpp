// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "graph_calls.hpp"
#include "kernel_list.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

TEST_CASE("nodes that record events and wait for them", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUevent first = new_event(CU_EVENT_DISABLE_TIMING), second = new_event(CU_EVENT_DISABLE_TIMING), awaited = new_event(CU_EVENT_DISABLE_TIMING);
  const CUgraph graph = new_graph();
  CUgraphNode wait = nullptr, kernel = nullptr, record = nullptr;
  OK(CU(cuGraphAddEventWaitNode)(&wait, graph, nullptr, 0, awaited));
  const auto parameters = list.node(5);
  OK(CU(cuGraphAddKernelNode)(&kernel, graph, &wait, 1, &parameters));
  OK(CU(cuGraphAddEventRecordNode)(&record, graph, &kernel, 1, first));
  CUevent got = nullptr;
  OK(CU(cuGraphEventRecordNodeGetEvent)(record, &got));
  CHECK(got == first);
  OK(CU(cuGraphEventWaitNodeGetEvent)(wait, &got));
  CHECK(got == awaited);
  OK(CU(cuGraphEventRecordNodeSetEvent)(record, second));
  OK(CU(cuGraphEventRecordNodeGetEvent)(record, &got));
  CHECK(got == second);
  OK(CU(cuGraphEventWaitNodeSetEvent)(wait, first));
  OK(CU(cuGraphEventWaitNodeSetEvent)(wait, awaited));

  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS how{};
  OK(CU(cuGraphInstantiateWithParams)(&exec, graph, &how));
  CHECK(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  cuuint64_t flags = 99;
  OK(CU(cuGraphExecGetFlags)(exec, &flags));
  CHECK(flags == 0);
  OK(CU(cuGraphExecEventRecordNodeSetEvent)(exec, record, first));
  OK(CU(cuGraphExecEventWaitNodeSetEvent)(exec, wait, awaited));

  const CUstream stream = new_stream(), side = new_stream();
  SharedWord gate;
  OK(launch(image.function("spin"), side, 1, 1, gate.address()));
  gate.wait_for_spinning();
  OK(CU(cuEventRecord)(awaited, side));
  OK(CU(cuGraphLaunch)(exec, stream));
  CHECK(CU(cuEventQuery)(first) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuEventSynchronize)(first));
  CHECK(list.values() == std::vector<unsigned>{5});
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  for (const CUevent event : {first, second, awaited}) OK(CU(cuEventDestroy)(event));
  for (const CUstream each : {stream, side}) OK(CU(cuStreamDestroy)(each));
}

TEST_CASE("attributes of kernel nodes are kept and copied", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph graph = new_graph();
  CUgraphNode one = nullptr, other = nullptr;
  const auto parameters = list.node(5);
  OK(CU(cuGraphAddKernelNode)(&one, graph, nullptr, 0, &parameters));
  OK(CU(cuGraphAddKernelNode)(&other, graph, &one, 1, &parameters));
  CUkernelNodeAttrValue value{};
  value.priority = -1;
  OK(CU(cuGraphKernelNodeSetAttribute)(one, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  value = {};
  OK(CU(cuGraphKernelNodeGetAttribute)(one, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  CHECK(value.priority == -1);
  OK(CU(cuGraphKernelNodeGetAttribute)(other, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  CHECK(value.priority == 0);
  OK(CU(cuGraphKernelNodeCopyAttributes)(other, one));
  OK(CU(cuGraphKernelNodeGetAttribute)(other, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  CHECK(value.priority == -1);
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("parameters of nodes, set by the call for every kind", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const LoadedImage image;
  KernelList list(image);
  const CUgraph graph = new_graph();
  CUgraphNode kernel = nullptr;
  const auto parameters = list.node(5);
  OK(CU(cuGraphAddKernelNode)(&kernel, graph, nullptr, 0, &parameters));
  const auto set = [&](unsigned value, CUgraphExec exec) {
    const auto wanted = list.node(value);
    CUgraphNodeParams all{};
    all.type = CU_GRAPH_NODE_TYPE_KERNEL;
    all.kernel.func = wanted.func;
    all.kernel.gridDimX = all.kernel.gridDimY = all.kernel.gridDimZ = 1;
    all.kernel.blockDimX = all.kernel.blockDimY = all.kernel.blockDimZ = 1;
    all.kernel.kernelParams = wanted.kernelParams;
    return exec == nullptr ? CU(cuGraphNodeSetParams)(kernel, &all) : CU(cuGraphExecNodeSetParams)(exec, kernel, &all);
  };
  OK(set(6, nullptr));
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  const CUstream stream = new_stream();
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(set(7, exec));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(list.values() == std::vector<unsigned>{6, 7});
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a host node's function may be changed before the graph is instantiated", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  const CUgraph graph = new_graph();
  int calls[2] = {};
  const CUDA_HOST_NODE_PARAMS first{[](void* data) { ++*static_cast<int*>(data); }, &calls[0]};
  const CUDA_HOST_NODE_PARAMS second{[](void* data) { ++*static_cast<int*>(data); }, &calls[1]};
  CUgraphNode node = nullptr;
  OK(CU(cuGraphAddHostNode)(&node, graph, nullptr, 0, &first));
  OK(CU(cuGraphHostNodeSetParams)(node, &second));
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  const CUstream stream = new_stream();
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(calls[0] == 0);
  CHECK(calls[1] == 1);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a user object lives as long as anybody holds it", "[forwarded]") {
  SKIP_ON_CPU_DRIVER();
  const DeviceContext context;
  int destroyed = 0;
  CUuserObject object = nullptr;
  OK(CU(cuUserObjectCreate)(
      &object, &destroyed, [](void* data) { ++*static_cast<int*>(data); }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(CU(cuUserObjectRetain)(object, 2));
  CHECK(CU(cuUserObjectRetain)(object, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUgraph graph = new_graph();
  OK(CU(cuGraphRetainUserObject)(graph, object, 1, 0));
  OK(CU(cuUserObjectRelease)(object, 3));
  CHECK(destroyed == 0);
  OK(CU(cuGraphReleaseUserObject)(graph, object, 1));
  CHECK(destroyed == 1);
  OK(CU(cuGraphDestroy)(graph));
}
