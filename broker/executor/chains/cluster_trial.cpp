// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/cluster_trial.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/executor/base/core.hpp"
#include "broker/executor/base/scoped_call.hpp"
#include "broker/executor/chains/chain_graph.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr ClusterShape kOneBlock{1, 1, 1, 0};
constexpr ClusterShape kTwoBlocks{2, 1, 1, 0};
constexpr std::uint32_t kBlocks = 4;

class Trial {
 public:
  Trial(ExecutorCore& core, CUfunction width, std::uint32_t word)
      : core_(core), word_(core.progress[word].completed), address_(core.progress.completed(word)) {
    function_.handle = width;
    function_.parameters.push_back({0, sizeof address_});
    function_.parameter_bytes = sizeof address_;
  }
  ~Trial() {
    if (clients_exec_ != nullptr) core_.driver->cuGraphExecDestroy(clients_exec_);
    if (clients_graph_ != nullptr) core_.driver->cuGraphDestroy(clients_graph_);
    if (stream_ != nullptr) core_.driver->cuStreamDestroy_v2(stream_);
    word_ = 0;
  }

  // What was otherwise than it has to be for chains; empty: nothing.
  [[nodiscard]] std::string run() {
    CUresult error = CUDA_SUCCESS;
    const char* call = "cuStreamCreate";
    error = core_.driver->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    if (error == CUDA_SUCCESS) graph_ = ChainGraph::make(core_, {1, false}, error, call);
    if (!graph_) return std::string(call) + ": " + core_.driver.describe(error);
    // The function has been in the node with the same grid before.
    if (launch_node({}) != 1) return "a node without a cluster" + seen();
    if (change(kTwoBlocks) != CUDA_SUCCESS || !function_.cluster.is_settled_as(kTwoBlocks)) return "a function's cluster cannot be set";
    if (launch_node(kTwoBlocks) != kTwoBlocks.x) return "a node does not take the cluster of its function" + seen();
    if (launch_singly() != kTwoBlocks.x) return "a launch does not take the cluster of its function" + seen();
    const CUresult made = make_clients_graph();
    takes_clustered_nodes_ = made == CUDA_SUCCESS && launch_clients_graph() == kTwoBlocks.x;
    if (change({}) != CUDA_SUCCESS) return "a function's cluster cannot be taken away";
    if (launch_node({}) != 1) return "a node keeps the cluster of a function that it had before" + seen();
    if (launch_singly() != 1) return "a function keeps a cluster that was taken away" + seen();
    takes_clustered_nodes_ = takes_clustered_nodes_ && launch_clients_graph() == kTwoBlocks.x;
    return {};
  }
  // A node whose function has a cluster can be given the same by its attributes, and keeps it whatever becomes of the function's.
  [[nodiscard]] bool takes_clustered_nodes() const { return takes_clustered_nodes_; }

 private:
  [[nodiscard]] CUresult change(ClusterShape shape) { return function_.cluster.change(core_.driver, function_.handle, shape); }
  // What the kernel has found; 0: it has not run.
  [[nodiscard]] std::uint32_t result_of(CUresult launched) {
    if (launched == CUDA_SUCCESS) launched = core_.driver->cuStreamSynchronize(stream_);
    width_ = launched == CUDA_SUCCESS ? word_.exchange(0) : 0;
    launched_ = launched;
    return width_;
  }
  // Of the last launch: what is not as meant need not be what the driver was thought to do otherwise.
  [[nodiscard]] std::string seen() const {
    return launched_ == CUDA_SUCCESS ? " (" + std::to_string(width_) + " blocks wide)" : " (" + core_.driver.describe(launched_) + ")";
  }
  [[nodiscard]] LaunchOp launch_in(ClusterShape shape) {
    LaunchOp launch;
    launch.function = &function_;
    launch.grid[0] = kBlocks;
    launch.grid[1] = launch.grid[2] = launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.cluster = shape;
    launch.data = reinterpret_cast<const std::byte*>(&address_);
    launch.parameter_bytes = sizeof address_;
    return launch;
  }
  [[nodiscard]] std::uint32_t launch_node(ClusterShape shape) {
    const LaunchOp launch = launch_in(shape);
    const LaunchOp* const only = &launch;
    CUresult result = graph_->fill({&only, 1}, nullptr);
    if (result == CUDA_SUCCESS) result = core_.driver->cuGraphLaunch(graph_->exec(), stream_);
    return result_of(result);
  }
  [[nodiscard]] std::uint32_t launch_singly() {
    void* parameters[] = {&address_};
    return result_of(core_.driver->cuLaunchKernel(function_.handle, kBlocks, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  }

  // As SessionGraph makes them.
  [[nodiscard]] CUresult make_clients_graph() {
    const LaunchOp launch = launch_in({});
    std::vector<void*> addresses;
    const CUDA_KERNEL_NODE_PARAMS params = kernel_node_params(launch, core_.context, addresses);
    CUlaunchAttributeValue value{};
    value.clusterDim = {kTwoBlocks.x, kTwoBlocks.y, kTwoBlocks.z};
    CUgraphNode node = nullptr;
    CUresult result = core_.driver->cuGraphCreate(&clients_graph_, 0);
    if (result == CUDA_SUCCESS) result = core_.driver->cuGraphAddKernelNode_v2(&node, clients_graph_, nullptr, 0, &params);
    if (result == CUDA_SUCCESS) result = core_.driver->cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value);
    return result == CUDA_SUCCESS ? core_.driver->cuGraphInstantiateWithFlags(&clients_exec_, clients_graph_, 0) : result;
  }
  [[nodiscard]] std::uint32_t launch_clients_graph() { return result_of(core_.driver->cuGraphLaunch(clients_exec_, stream_)); }

  ExecutorCore& core_;
  std::atomic<std::uint32_t>& word_;
  OwnWord address_;  // of the same word
  LoadedFunction function_;
  CUstream stream_ = nullptr;
  std::unique_ptr<ChainGraph> graph_;
  CUgraph clients_graph_ = nullptr;
  CUgraphExec clients_exec_ = nullptr;
  bool takes_clustered_nodes_ = false;
  std::uint32_t width_ = 0;
  CUresult launched_ = CUDA_SUCCESS;
};

}  // namespace

void try_clusters(ExecutorCore& core, const ClusterTrialKernels& kernels) {
  core.has_chained_clusters = core.has_clustered_nodes = false;
  ClusterSetting setting;  // stays with the driver's function; nobody asks for it again
  core.reset_function =
      setting.change(core.driver, kernels.reset, kOneBlock) == CUDA_SUCCESS && setting.is_settled_as(kOneBlock) ? kernels.reset : nullptr;
  const std::optional<std::uint32_t> word = core.progress.take();
  if (!word) return;
  {
    const ScopedMark mark(0, "cuGraphLaunch", Patience::patient);
    Trial trial(core, kernels.width, *word);
    const std::string fault = trial.run();
    if (!fault.empty()) log_warning("Launches in clusters are issued one by one, not in chains: of this driver's, {}", fault);
    core.has_chained_clusters = fault.empty();
    core.has_clustered_nodes = core.has_chained_clusters && trial.takes_clustered_nodes();
  }
  if (core.has_chained_clusters && !core.has_clustered_nodes)
    log_warning(
        "What clients' graphs launch in clusters is issued one by one elsewhere: this driver's nodes do not take their function's by attribute");
  core.progress.give_back(*word);
}

}  // namespace mpsshim::broker
