// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/held_graphs.hpp"

#include <utility>

namespace mpsshim::test {

namespace {

CUDA_KERNEL_NODE_PARAMS add_params(CUfunction add, void** arguments, unsigned count) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = add;
  params.gridDimX = (count + 127) / 128;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = 128;
  params.kernelParams = arguments;
  return params;
}

}  // namespace

HeldGraphs::HeldGraphs(const Device& device) : device_(device), words_(kWords, 3), copied_(kWords, 4) {
  CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&recorded_, CU_EVENT_DISABLE_TIMING));
  capture();
  build();
  orphan();
  use();
}

// The kernel that is captured adds another value than the one that the executable graph gets afterwards.
void HeldGraphs::capture() {
  CU(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU(device_.launch_add(words_.address, kWords, 1'000'000, stream_));
  CU(cuEventRecordWithFlags(recorded_, stream_, CU_EVENT_RECORD_EXTERNAL));
  CU(cuStreamEndCapture(stream_, &captured_graph_));
  CU(cuGraphInstantiateWithFlags(&captured_, captured_graph_, 0));
  value_ = 5;
  CUgraphNode nodes[2] = {};
  std::size_t count = 2;
  CU(cuGraphGetRootNodes(captured_graph_, nodes, &count));
  unsigned words = kWords;
  void* arguments[] = {&words_.address, &words, &value_};
  const CUDA_KERNEL_NODE_PARAMS params = add_params(device_.add, arguments, kWords);
  CU(cuGraphExecKernelNodeSetParams(captured_, nodes[0], &params));
}

// copied_ = words_, then its first ten words are 7.
void HeldGraphs::build() {
  CUgraph graph = nullptr;
  CUgraphNode copy_node = nullptr, fill_node = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = words_.address;
  copy.dstDevice = copied_.address;
  copy.WidthInBytes = kWords * sizeof(unsigned);
  copy.Height = copy.Depth = 1;
  CU(cuGraphAddMemcpyNode(&copy_node, graph, nullptr, 0, &copy, device_.context));
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = copied_.address;
  fill.value = 7;
  fill.elementSize = 4;
  fill.width = 10;
  fill.height = 1;
  CU(cuGraphAddMemsetNode(&fill_node, graph, &copy_node, 1, &fill, device_.context));
  CU(cuGraphInstantiateWithFlags(&built_, graph, 0));
  CU(cuGraphDestroy(graph));
}

void HeldGraphs::orphan() {
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CU(cuModuleLoadData(&module, kPlainPtx));
  CU(cuModuleGetFunction(&add, module, "add"));
  CU(cuGraphCreate(&graph, 0));
  unsigned words = kWords;
  void* arguments[] = {&words_.address, &words, &value_};
  const CUDA_KERNEL_NODE_PARAMS params = add_params(add, arguments, kWords);
  CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  CU(cuGraphInstantiateWithFlags(&orphan_, graph, 0));
  CU(cuGraphDestroy(graph));
  CU(cuModuleUnload(module));
}

void HeldGraphs::use() {
  if (orphan_ != nullptr && value_ > 6) CU(cuGraphExecDestroy(std::exchange(orphan_, nullptr)));
  for (int turn = 0; turn < 2; ++turn) {
    CU(cuGraphLaunch(captured_, stream_));
    words_.add(value_);
  }
  CU(cuEventSynchronize(recorded_));
  CU(cuGraphLaunch(built_, stream_));
  CU(cuStreamSynchronize(stream_));
  copied_.expected = words_.expected;
  for (int i = 0; i < 10; ++i) copied_.expected[static_cast<std::size_t>(i)] = 7;
  words_.check();
  copied_.check();
  // What it adds next time, said now.
  ++value_;
  CUgraphNode node = nullptr;
  std::size_t count = 1;
  CU(cuGraphGetRootNodes(captured_graph_, &node, &count));
  unsigned words = kWords;
  void* arguments[] = {&words_.address, &words, &value_};
  const CUDA_KERNEL_NODE_PARAMS params = add_params(device_.add, arguments, kWords);
  CU(cuGraphExecKernelNodeSetParams(captured_, node, &params));
}

}  // namespace mpsshim::test
