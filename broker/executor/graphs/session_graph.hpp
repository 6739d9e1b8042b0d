// SPDX-License-Identifier: Apache-2.0
// An executable graph of a session: its nodes as the client described them, and the driver's graph made of them. Three steps, each by
// another thread, one after the other: read() on the session's worker; build() by a helper, which adds the nodes; instantiate() in a quiet
// window, since that may take device memory and then waits for every running kernel. Afterwards it is the worker's again.
//
// The driver's objects are given back by destroy(), once no launch is under way, in a window as far as that holds up others; never by the destructor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "broker/executor/context/objects.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/graphs/graph_node.hpp"

namespace mpsshim::broker {

class SessionVariables;

class SessionGraph {
 public:
  explicit SessionGraph(ExecutorParts& parts) : parts_(parts) {}
  SessionGraph(const SessionGraph&) = delete;

  // --- before it is ready ---
  void describe(std::span<const std::byte> bytes) { description_.insert(description_.end(), bytes.begin(), bytes.end()); }
  [[nodiscard]] std::size_t description_bytes() const { return description_.size(); }
  // The whole description, `node_count` nodes, in as many turns as it takes: nothing until the last. A fault leaves the graph without nodes;
  // `failed_node` is the one it was found in.
  [[nodiscard]] std::optional<NodeFault> read_some(GraphScope& scope, std::uint32_t node_count, std::uint32_t& failed_node, TurnBudget& budget);
  [[nodiscard]] CUresult build(std::uint32_t& failed_node);
  [[nodiscard]] CUresult instantiate(std::uint64_t flags);
  // `being_made`: other threads are at it. `ready`: it may be launched.
  enum class State : std::uint8_t { described, being_made, ready, failed };
  void set_state(State state) { state_ = state; }
  [[nodiscard]] bool is_being_made() const { return state_ == State::being_made; }
  [[nodiscard]] bool is_ready() const { return state_ == State::ready; }

  // --- the worker ---
  // New contents for the launches that come from now on.
  [[nodiscard]] NodeFault update(GraphScope& scope, std::span<const std::byte> nodes);
  // Whether all memory that the launch to come names is still the session's. Work that is queued keeps its memory, so it need not be asked again.
  [[nodiscard]] bool owns_its_memory(const MemoryMap& memory);
  // The launch that comes now: with what was updated since the last; the events that it records mean its nodes from here on.
  [[nodiscard]] GraphOp next_launch(EventTable& events);
  [[nodiscard]] bool is_turn(const GraphOp& op) const { return op.turn == issued_ + 1; }
  void note_issued(const GraphOp& op);

  // It is ready, and kernels of it that name no green context are on other multiprocessors than the session's, whose share that is.
  [[nodiscard]] bool is_outside(const GreenContextRef& share) const;
  // The client has ended it: it is not made anew any more.
  void leave() { has_left_.store(true, std::memory_order_relaxed); }

  // In a quiet window: made anew, with those kernels on the multiprocessors of that share. An error: it is as it was, and stays so.
  [[nodiscard]] CUresult confine(const GreenContextRef& share);

  // --- who issues ---
  // Updates, then the launch; only the latter under the issue lock.
  [[nodiscard]] CUresult launch(const GraphOp& op, CUstream stream, IssueLock& issue_lock);
  // What the quiet window knows the graph by, the greatest local memory of its kernels, and a kernel of it, to be named after a fault.
  [[nodiscard]] const void* identity() const { return exec_; }
  [[nodiscard]] std::uint32_t local_bytes() const { return local_bytes_; }
  [[nodiscard]] const LoadedFunction* last_kernel() const { return last_kernel_; }
  [[nodiscard]] bool may_print() const { return may_print_; }
  // Whether a launch may write to variables of modules, and which it then does.
  [[nodiscard]] bool may_write(const SessionVariables& variables) const;
  void note_writes(SessionVariables& variables) const;

  // What instantiating it in a window may take, and destroying it; zero: it names nothing that takes device memory, and needs no window.
  [[nodiscard]] std::chrono::microseconds instantiation_time() const { return kInstantiationOfNode * working_nodes_; }
  [[nodiscard]] std::chrono::microseconds destruction_time() const { return kDestructionOfNode * working_nodes_; }

  // Whether the driver has something of it.
  [[nodiscard]] bool is_in_driver() const { return graph_ != nullptr || conditioned_ != nullptr; }
  void destroy();
  // What of it holds up others, in a window; then any thread may do the rest.
  void destroy_launchable();
  // What holds up nobody, where the rest is done later.
  void destroy_unheld();
  // Null unless it has conditional nodes. Then it is built in a quiet window, in that graph, of which there is one executable graph at a time.
  [[nodiscard]] ConditionedGraph* conditioned() const { return conditioned_.get(); }
  void destroy_exec();

 private:
  [[nodiscard]] bool find_conditions(const std::vector<GraphNode>& nodes);
  // `nodes`: of the same graph.
  [[nodiscard]] CUresult add_node(CUgraph graph, const std::vector<GraphNode>& nodes, GraphNode& node);
  [[nodiscard]] CUresult add_kernel(CUgraph graph, GraphNode& node, const KernelNode& kernel, const std::vector<CUgraphNode>& after);
  [[nodiscard]] CUresult add_condition(CUgraph graph, GraphNode& node, const ConditionNode& condition, const std::vector<CUgraphNode>& after);
  [[nodiscard]] CUresult set_attributes(CUgraphNode node, const LaunchOp& launch);
  [[nodiscard]] CUresult apply(GraphUpdate& update);
  // Of exec_.
  [[nodiscard]] CUresult set_kernel(const GraphNode& node, const KernelNode& kernel);
  [[nodiscard]] static std::size_t count_working(const NodeWork& work);
  void note_kernel(const NodeWork& work);
  void note_place(const GreenContextRef& share);
  // Each node made with the most parameters that it has had, then set to what it holds.
  [[nodiscard]] CUresult make_anew();
  void note_ranges(std::uint32_t index, const NodeWork& work, bool is_enabled);

  // On an H200, of graphs of 1,000 to 20,000 kernels (docs/experiments/2026-11-23-large-graphs.md).
  static constexpr std::chrono::microseconds kInstantiationOfNode{5};
  static constexpr std::chrono::microseconds kDestructionOfNode{1};

  ExecutorParts& parts_;
  std::vector<std::byte> description_;
  std::size_t bytes_read_ = 0;       // of it
  std::vector<GraphNode> read_;      // until all of it is
  std::uint32_t nodes_noted_ = 0;    // of nodes_: what read_some() has looked at once more
  std::vector<GraphNode> nodes_;
  std::vector<std::uint32_t> event_nodes_;
  // What nodes of the launch to come read and write, by node; without disabled ones.
  std::map<std::uint32_t, std::vector<NodeRange>> ranges_;
  std::optional<std::uint64_t> losses_seen_;  // all of it was the session's at that count of MemoryMap::losses()
  std::shared_ptr<ConditionedGraph> conditioned_;
  CUgraph graph_ = nullptr;  // its own, or conditioned_'s
  CUgraphExec exec_ = nullptr;
  std::uint64_t flags_ = 0;  // of exec_
  // The session's share that its kernels are on, which they hold, so that no other has the address; stored by the worker while it is read, and in
  // windows. is_outside() goes by it.
  std::atomic<const GreenContext*> place_{nullptr};
  std::atomic<bool> is_mixed_{false};     // the share changed while it was read
  std::atomic<bool> keeps_place_{false};  // it could not be made anew
  bool follows_share_ = false;            // one of its kernels does
  std::atomic<bool> has_left_{false};
  State state_ = State::described;
  std::size_t working_nodes_ = 0;  // all but empty ones, and those of bodies
  std::uint32_t local_bytes_ = 0;
  const LoadedFunction* last_kernel_ = nullptr;
  std::set<const LoadedFunction*> writers_;            // of its kernels, and of those before, those that write to variables
  bool may_print_ = false;                             // one of its kernels, or one that was in its place before
  std::shared_ptr<std::vector<GraphUpdate>> updates_;  // of no launch yet
  std::size_t update_bytes_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t issued_ = 0;
  // Why the driver refused a change: from then on the graph is not launched, since it is another than ranges_ and nodes_ say.
  CUresult unchanged_ = CUDA_SUCCESS;
  std::vector<ImageUse> earlier_images_;  // of kernels that launches under way may still use
  std::vector<void*> addresses_;          // scratch
};

}  // namespace mpsshim::broker
