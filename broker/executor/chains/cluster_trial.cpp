// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/cluster_trial.hpp"

#include <memory>
#include <optional>
#include <string>

#include "broker/executor/base/core.hpp"
#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/chains/chain_graph.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr ClusterShape kTwoBlocks{2, 1, 1, 0};
constexpr std::uint32_t kBlocks = 4;

class Trial {
 public:
  Trial(ExecutorCore& core, CUfunction width, std::uint32_t word) : core_(core), word_(core.progress[word].completed), address_(core.progress.completed(word)) {
    function_.handle = width;
    function_.parameters.push_back({0, sizeof address_});
    function_.parameter_bytes = sizeof address_;
  }
  ~Trial() {
    if (stream_ != nullptr) core_.driver->cuStreamDestroy_v2(stream_);
    word_ = 0;
  }

  // What was otherwise than it has to be; empty: nothing.
  [[nodiscard]] std::string run() {
    CUresult error = CUDA_SUCCESS;
    const char* call = "cuStreamCreate";
    error = core_.driver->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    if (error == CUDA_SUCCESS) graph_ = ChainGraph::make(core_, {1, false}, error, call);
    if (!graph_) return std::string(call) + ": " + core_.driver.describe(error);
    if (change(kTwoBlocks) != CUDA_SUCCESS || !function_.cluster.is_settled_as(kTwoBlocks)) return "a function's cluster cannot be set";
    if (launch_node(kTwoBlocks) != kTwoBlocks.x) return "a node does not take the cluster of its function";
    if (launch_singly() != kTwoBlocks.x) return "a launch does not take the cluster of its function";
    if (change({}) != CUDA_SUCCESS) return "a function's cluster cannot be taken away";
    if (launch_node({}) != 1) return "a node keeps the cluster of a function that it had before";
    if (launch_singly() != 1) return "a function keeps a cluster that was taken away";
    return {};
  }

 private:
  [[nodiscard]] CUresult change(ClusterShape shape) { return function_.cluster.change(core_.driver, function_.handle, shape); }
  // What the kernel has found; 0: it has not run.
  [[nodiscard]] std::uint32_t result_of(CUresult launched) {
    if (launched == CUDA_SUCCESS) launched = core_.driver->cuStreamSynchronize(stream_);
    return launched == CUDA_SUCCESS ? word_.exchange(0) : 0;
  }
  [[nodiscard]] std::uint32_t launch_node(ClusterShape shape) {
    LaunchOp launch;
    launch.function = &function_;
    launch.grid[0] = kBlocks;
    launch.grid[1] = launch.grid[2] = launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.cluster = shape;
    launch.data = reinterpret_cast<const std::byte*>(&address_);
    launch.parameter_bytes = sizeof address_;
    const LaunchOp* const only = &launch;
    CUresult result = graph_->fill({&only, 1}, nullptr);
    if (result == CUDA_SUCCESS) result = core_.driver->cuGraphLaunch(graph_->exec(), stream_);
    return result_of(result);
  }
  [[nodiscard]] std::uint32_t launch_singly() {
    void* parameters[] = {&address_};
    return result_of(core_.driver->cuLaunchKernel(function_.handle, kBlocks, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  }

  ExecutorCore& core_;
  std::atomic<std::uint32_t>& word_;
  OwnWord address_;  // of the same word
  LoadedFunction function_;
  CUstream stream_ = nullptr;
  std::unique_ptr<ChainGraph> graph_;
};

}  // namespace

bool try_clusters(ExecutorCore& core, CUfunction width) {
  const std::optional<std::uint32_t> word = core.progress.take();
  if (!word) return false;
  const ScopedMark mark(0, "cuGraphLaunch", Patience::patient);
  const std::string fault = Trial(core, width, *word).run();
  core.progress.give_back(*word);
  if (!fault.empty()) log_warning("Launches in clusters are issued one by one, not in chains: of this driver's, {}", fault);
  return fault.empty();
}

}  // namespace mpsshim::broker
