// SPDX-License-Identifier: Apache-2.0
// One prepared linear graph: so many kernels, one behind the other, and perhaps the kernel that writes the words (word_writes.hpp) behind
// them. Kernels and parameters are set before each launch; the driver takes a copy at the launch. A node whose contents are those of last
// time is not touched. What is launched with a cluster has that of its function, which the node then keeps until it is emptied
// (cluster_setting.hpp).
//
// Made by ChainPool alone. Otherwise used by one thread at a time: the worker of the stream that has it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/word_writes.hpp"
#include "broker/executor/chains/chain_pieces.hpp"
#include "broker/executor/operations/stream_op.hpp"

namespace mpsshim::broker {

struct ExecutorCore;

// Chains of that length have words in any case: there is nothing else in them, or they cost little there. In a flood of the longest chains words
// behind each of them would cost 6 to 9 % of the launches (docs/experiments/2026-11-22-words-behind-chains.md).
[[nodiscard]] bool always_has_words(std::size_t length);

struct ChainShape {
  std::size_t length = 0;  // one that chain_length() gives, or 0: the words alone
  bool has_words = false;  // as always_has_words() says, or as wanted

  static constexpr std::size_t kShapes = 24;
  [[nodiscard]] std::size_t index() const;
};

// kernelParams of a launch: the address of each parameter in the launch's buffer. `addresses` is scratch of the caller.
void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses);
// The launch as a graph's node takes it; with a null context, in the current one. Points to `addresses`.
[[nodiscard]] CUDA_KERNEL_NODE_PARAMS kernel_node_params(const LaunchOp& launch, CUcontext context, std::vector<void*>& addresses);

class ChainGraph {
 public:
  // Null with the driver's error and the call that gave it. May wait for every running kernel: see ChainPool.
  [[nodiscard]] static std::unique_ptr<ChainGraph> make(const ExecutorCore& core, ChainShape shape, CUresult& error, const char*& call);
  ChainGraph(const ChainGraph&) = delete;
  ~ChainGraph();

  [[nodiscard]] ChainShape shape() const { return shape_; }
  [[nodiscard]] CUgraphExec exec() const { return exec_; }
  // As many launches as the shape's length, words where it has them. An error: the graph holds parts of it and may be filled again. `functions`: as
  // hash_of_functions() says, or 0.
  [[nodiscard]] CUresult fill(std::span<const LaunchOp* const> launches, const WordWrites* words, std::uint64_t functions = 0);
  // That it was filled with last; 0: not known.
  [[nodiscard]] std::uint64_t functions() const { return functions_; }
  // Names no function of a client's any more.
  void clear();

 private:
  // What a kernel node holds.
  struct Node {
    CUgraphNode node = nullptr;
    CUfunction function = nullptr;  // nullptr: unknown
    std::uint32_t grid[3] = {};
    std::uint32_t block[3] = {};
    std::uint32_t shared_bytes = 0;
    std::vector<std::byte> parameters;
    ClusterShape cluster;  // with which the node was set last
    bool is_empty = true;  // it has a kernel of the executor's own, which does nothing

    [[nodiscard]] bool holds(const LaunchOp& launch) const;
    void hold(const LaunchOp& launch);
  };

  ChainGraph(const ExecutorCore& core, ChainShape shape) : core_(core), shape_(shape), kernels_(shape.length) {}
  [[nodiscard]] CUresult add_nodes();
  [[nodiscard]] CUresult set_kernel(Node& kernel, const LaunchOp& launch);
  [[nodiscard]] CUresult empty(Node& kernel);

  const ExecutorCore& core_;
  const ChainShape shape_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  std::uint64_t functions_ = 0;
  std::vector<Node> kernels_;
  CUgraphNode writer_ = nullptr;
  std::vector<void*> addresses_;  // scratch
};

}  // namespace mpsshim::broker
