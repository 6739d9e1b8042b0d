// SPDX-License-Identifier: Apache-2.0
// What threads do with modules, libraries and graphs.
#include <iterator>

#include "thread_steps.hpp"

namespace mpsshim::test {

namespace {

// --- modules ---

void load_modules(Worker& worker) {
  CUmodule made = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  STEP(worker, cuModuleLoadData, &made, worker.shared.image.content().data());
  STEP(worker, cuModuleGetFunction, &function, made, "add_to");
  STEP(worker, cuModuleGetGlobal, &variable, &bytes, made, "counter");
  int counter = 0;
  STEP(worker, cuMemcpyDtoH, &counter, variable, sizeof counter);
  if (counter != 5) worker.expect(CUDA_ERROR_UNKNOWN);
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  STEP(worker, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  ++worker.shared.expected_sum;
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuModuleUnload, made);
}

void load_libraries(Worker& worker) {
  CUlibrary made = nullptr;
  CUkernel kernel = nullptr;
  STEP(worker, cuLibraryLoadData, &made, worker.shared.image.content().data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  STEP(worker, cuLibraryGetKernel, &kernel, made, "add_to");
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  STEP(worker, cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  ++worker.shared.expected_sum;
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuLibraryUnload, made);
}

void look_functions_up(Worker& worker) {
  static constexpr const char* kNames[] = {"vector_add", "store", "add_to", "append", "read_variables", "bounded", "shared_memory"};
  CUfunction function = nullptr;
  STEP(worker, cuModuleGetFunction, &function, worker.shared.image.handle(), kNames[worker.below(std::size(kNames))]);
  int value = 0;
  STEP(worker, cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
  STEP(worker, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, static_cast<int>(worker.below(100)));
}

void ask_of_occupancy(Worker& worker) {
  int blocks = 0;
  STEP(worker, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, worker.shared.add_to, 32 + static_cast<int>(worker.below(900)),
       worker.below(4096));
}

// --- graphs ---

// A capture that another thread has spoilt by waiting for all of the context, as CUDA says.
bool expect_captured(Worker& worker, CUresult status) {
  if (!worker.captures_meet_waits) return worker.expect(status);
  worker.expect(status, {CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED});
  return status == CUDA_SUCCESS;
}

bool capture(Worker& worker, CUgraph& graph) {
  if (!worker.expect(DRIVER(worker, cuStreamBeginCapture, worker.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) return false;
  CUdeviceptr sum = worker.shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  const CUfunction add_to = worker.shared.add_to;
  expect_captured(worker, DRIVER(worker, cuMemsetD32Async, worker.device, 3, Worker::kWords, worker.stream));
  expect_captured(worker, DRIVER(worker, cuLaunchKernel, add_to, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr));
  return expect_captured(worker, DRIVER(worker, cuStreamEndCapture, worker.stream, &graph));
}

void capture_graphs(Worker& worker) {
  CUgraph graph = nullptr;
  CUgraph same = nullptr;
  CUgraphExec exec = nullptr;
  if (!capture(worker, graph)) return;
  STEP(worker, cuGraphInstantiateWithFlags, &exec, graph, 0);
  STEP(worker, cuGraphLaunch, exec, worker.stream);
  ++worker.shared.expected_sum;
  if (capture(worker, same)) {
    CUgraphExecUpdateResultInfo info{};
    STEP(worker, cuGraphExecUpdate, exec, same, &info);
    STEP(worker, cuGraphLaunch, exec, worker.stream);
    ++worker.shared.expected_sum;
    STEP(worker, cuGraphDestroy, same);
  }
  STEP(worker, cuGraphExecDestroy, exec);
  STEP(worker, cuGraphDestroy, graph);
  STEP(worker, cuStreamSynchronize, worker.stream);
}

void build_graphs(Worker& worker) {
  SharedObjects& shared = worker.shared;
  CUgraph graph = nullptr;
  CUgraphNode kernel_node = nullptr;
  CUgraphExec exec = nullptr;
  STEP(worker, cuGraphCreate, &graph, 0);
  CUdeviceptr sum = shared.sum.address();
  unsigned one = 1;
  void* arguments[] = {&sum, &one};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = shared.add_to;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  STEP(worker, cuGraphAddKernelNode, &kernel_node, graph, nullptr, 0, &kernel);
  CUDA_HOST_NODE_PARAMS host{count_call, &shared.host_calls};
  CUgraphNode host_node = nullptr;
  STEP(worker, cuGraphAddHostNode, &host_node, graph, &kernel_node, 1, &host);
  STEP(worker, cuGraphInstantiateWithFlags, &exec, graph, 0);
  STEP(worker, cuGraphDestroy, graph);
  STEP(worker, cuGraphLaunch, exec, worker.any_stream());
  ++shared.expected_sum;
  ++shared.expected_host_calls;
  STEP(worker, cuGraphExecDestroy, exec);  // while it runs
}

void launch_shared_graph(Worker& worker) {
  SharedObjects& shared = worker.shared;
  const std::lock_guard lock(shared.graph_mutex);
  STEP(worker, cuGraphLaunch, shared.exec, worker.any_stream());
  ++shared.expected_sum;
}

constexpr Operation kObjectOperations[] = {
    {"load modules", load_modules},
    {"load libraries", load_libraries},
    {"look functions up", look_functions_up},
    {"ask of occupancy", ask_of_occupancy},
    {"capture graphs", capture_graphs, false, false, true},
    {"build graphs", build_graphs},
    {"launch a shared graph", launch_shared_graph},
};

}  // namespace

std::span<const Operation> object_operations() { return kObjectOperations; }

}  // namespace mpsshim::test
