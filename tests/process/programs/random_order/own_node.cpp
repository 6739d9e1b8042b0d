// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/random_order/own_node.hpp"

#include <algorithm>
#include <random>
#include <string>

#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/random_order/order_kernels.hpp"

namespace mpsshim::test {

namespace {

constexpr std::uint32_t kWords = 32;

class OwnNode {
 public:
  explicit OwnNode(std::size_t first) : expected_(random_words(kWords)) {
    kernels_.load(0);
    CU(cuMemAlloc(&data_, sizeof(std::uint32_t) * kWords));
    CU(cuMemcpyHtoD(data_, expected_.data(), sizeof(std::uint32_t) * kWords));
    CU(cuGraphCreate(&graph_, 0));
    with_params(first, [&](const CUDA_KERNEL_NODE_PARAMS& params) { CU(cuGraphAddKernelNode(&node_, graph_, nullptr, 0, &params)); });
    CU(cuGraphInstantiate(&exec_, graph_, 0));
  }
  OwnNode(const OwnNode&) = delete;
  ~OwnNode() {
    cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
    cuMemFree(data_);
  }

  void set_and_launch(std::size_t which) {
    const Words32 blob =
        with_params(which, [&](const CUDA_KERNEL_NODE_PARAMS& params) { CU(cuGraphExecKernelNodeSetParams(exec_, node_, &params)); });
    CU(cuGraphLaunch(exec_, nullptr));
    model_blob(expected_, blob, kernels_.constant);
    Words32 found(kWords);
    CU(cuMemcpyDtoH(found.data(), data_, sizeof(std::uint32_t) * kWords));
    require(found == expected_, "wrong: a node that was set to a kernel with " + std::to_string(kBytesBeforeBlob + 4 * kBlobWords[which]) +
                                    " bytes of parameters did not run with them");
  }

 private:
  [[nodiscard]] Words32 random_words(std::size_t count) {
    Words32 words(count);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random_());
    return words;
  }
  // The blob with which it was used.
  template <typename Use>
  Words32 with_params(std::size_t which, Use use) {
    Words32 blob = random_words(kBlobWords[which]);
    std::uint32_t count = kWords;
    void* arguments[] = {&data_, &count, blob.data()};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = kernels_.blob[which];
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = kWords;
    params.kernelParams = arguments;
    use(params);
    return blob;
  }

  std::mt19937_64 random_;
  Words32 expected_;
  OrderKernels kernels_;
  CUdeviceptr data_ = 0;
  CUgraph graph_ = nullptr;
  CUgraphNode node_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace

void use_own_node(std::size_t parameter_bytes) {
  const auto* const first = std::ranges::find(kBlobWords, parameter_bytes, [](unsigned words) { return kBytesBeforeBlob + 4 * words; });
  require(first != kBlobWords.end(), "no kernel has " + std::to_string(parameter_bytes) + " bytes of parameters");
  OwnNode node(static_cast<std::size_t>(first - kBlobWords.begin()));
  for (std::size_t which = 0; which < kBlobWords.size(); ++which) node.set_and_launch(which);
}

}  // namespace mpsshim::test
