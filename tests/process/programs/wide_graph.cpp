// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/wide_graph.hpp"

#include <cstddef>
#include <string>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

namespace {

constexpr std::size_t kUnreadBytes = 4'080;

const std::string kBody = R"(
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<4>;
  ld.param.u64 %rd1, [seen];
  mov.u32 %r2, %smid;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  atom.global.add.u32 %r3, [%rd3], 1;
  ret;
}
)";

std::string text() {
  return ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry wide(.param .align 8 .b8 unread[" + std::to_string(kUnreadBytes) +
         "], .param .u64 seen)" + kBody + ".visible .entry narrow(.param .u64 seen)" + kBody;
}

}  // namespace

WideGraph::WideGraph(CUdeviceptr seen) : seen_(seen) {
  CU(cuModuleLoadData(&module_, text().c_str()));
  CU(cuModuleGetFunction(&wide_, module_, "wide"));
  CU(cuModuleGetFunction(&narrow_, module_, "narrow"));
  CU(cuGraphCreate(&graph_, 0));
  set(wide_, 1);
  CU(cuGraphInstantiate(&exec_, graph_, 0));
}

WideGraph::~WideGraph() {
  cuGraphExecDestroy(exec_);
  cuGraphDestroy(graph_);
  cuModuleUnload(module_);
}

void WideGraph::set(CUfunction function, unsigned blocks) {
  CUdeviceptr seen = seen_;
  std::byte unread[kUnreadBytes] = {};
  void* arguments[] = {unread, &seen};
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = blocks;
  params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = function == wide_ ? arguments : arguments + 1;
  if (node_ == nullptr)
    CU(cuGraphAddKernelNode(&node_, graph_, nullptr, 0, &params));
  else
    CU(cuGraphExecKernelNodeSetParams(exec_, node_, &params));
}

void WideGraph::run(CUstream stream, unsigned blocks) {
  for (const CUfunction function : {wide_, narrow_}) {
    set(function, blocks);
    CU(cuGraphLaunch(exec_, stream));
    CU(cuStreamSynchronize(stream));
  }
}

}  // namespace mpsshim::test
