// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/held_graphs.hpp"

#include <cstring>
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

const char kCountDownPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry count_down(.param .u64 word, .param .u64 condition) {
  .reg .u32 %r<1>; .reg .u64 %d<2>;
  ld.param.u64 %d0, [word];
  ld.param.u64 %d1, [condition];
  ld.global.u32 %r0, [%d0];
  sub.u32 %r0, %r0, 1;
  st.global.u32 [%d0], %r0;
  {
    .param .b64 handle;
    .param .b32 value;
    st.param.b64 [handle], %d1;
    st.param.b32 [value], %r0;
    call.uni cudaGraphSetConditional, (handle, value);
  }
  ret;
}
)ptx";

CUresult add_node(CUgraphNode* node, CUgraph graph, CUgraphNodeParams& params) {
#if CUDA_VERSION >= 13000
  return cuGraphAddNode(node, graph, nullptr, nullptr, 0, &params);
#else
  return cuGraphAddNode(node, graph, nullptr, 0, &params);
#endif
}

}  // namespace

HeldGraphs::HeldGraphs(const Device& device) : device_(device), words_(kWords, 3), copied_(kWords, 4), rounds_(1, 5), turned_(1, 6) {
  CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&recorded_, CU_EVENT_DISABLE_TIMING));
  capture();
  build();
  orphan();
  loop();
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

// Adds 1 to turned_ as often as rounds_ says. A condition's handle is the driver's; that the CPU's gives the same one again is known.
void HeldGraphs::loop() {
  char name[64] = "";
  CU(cuDeviceGetName(name, sizeof name, 0));
  if (std::strstr(name, "CPU reference") == nullptr) return;
  CUmodule module = nullptr;
  CUfunction count_down = nullptr;
  CUgraph graph = nullptr;
  CUgraphConditionalHandle handle = 0;
  CU(cuModuleLoadData(&module, kCountDownPtx));
  CU(cuModuleGetFunction(&count_down, module, "count_down"));
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphConditionalHandleCreate(&handle, graph, device_.context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  params.conditional.size = 1;
  params.conditional.ctx = device_.context;
  CUgraphNode nodes[3] = {};
  CU(add_node(&nodes[0], graph, params));
  const CUgraph body = params.conditional.phGraph_out[0];
  unsigned one = 1;
  void* add_arguments[] = {&turned_.address, &one, &one};
  const CUDA_KERNEL_NODE_PARAMS add = add_params(device_.add, add_arguments, 1);
  CU(cuGraphAddKernelNode(&nodes[1], body, nullptr, 0, &add));
  void* count_arguments[] = {&rounds_.address, &handle};
  CUDA_KERNEL_NODE_PARAMS count = add_params(count_down, count_arguments, 1);
  count.blockDimX = 1;
  CU(cuGraphAddKernelNode(&nodes[2], body, &nodes[1], 1, &count));
  CU(cuGraphInstantiateWithFlags(&loop_, graph, 0));
  CU(cuGraphDestroy(graph));
}

void HeldGraphs::use_loop() {
  if (loop_ == nullptr) return;
  const unsigned rounds = 5;
  CU(cuMemcpyHtoDAsync(rounds_.address, &rounds, sizeof rounds, stream_));
  CU(cuStreamSynchronize(stream_));
  CU(cuGraphLaunch(loop_, stream_));
  CU(cuStreamSynchronize(stream_));
  turned_.add(rounds);
  turned_.check();
}

void HeldGraphs::use() {
  use_loop();
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
