// SPDX-License-Identifier: Apache-2.0
// A graph of a client that conditional handles were made for. The driver makes a handle in a graph, and its conditional node may be in no other;
// so the driver's graph is made with the first handle, and what the client instantiates is built in it. CUDA permits one executable graph
// of such a graph at a time (CUgraphNodeType, CU_GRAPH_NODE_TYPE_CONDITIONAL); one that the client has ended leaves the driver before the next.
//
// create(), begin_build() to end_build(), forget() and the destructor are of quiet windows; take() and give_back() are the session's worker's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "broker/driver/driver.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

class SessionGraph;

class ConditionedGraph {
 public:
  explicit ConditionedGraph(const Driver& driver) : driver_(driver) {}
  ~ConditionedGraph();
  ConditionedGraph(const ConditionedGraph&) = delete;

  [[nodiscard]] CUresult create(CUcontext context, std::uint32_t default_value, std::uint32_t flags, CUgraphConditionalHandle& handle);

  // False: another executable graph of it is there, or being made.
  [[nodiscard]] bool take(const SessionGraph& graph);
  // Without effect unless it was that one that took it.
  void give_back(const SessionGraph& graph);
  // The driver has an executable graph of it, perhaps one that the client has ended.
  [[nodiscard]] bool has_holder() const { return holder_.load(std::memory_order_acquire) != nullptr; }

  // True: it holds that description already, in built(). Else it is empty, to be built, unless `result` is an error.
  // `may_keep`: what it holds may serve again.
  [[nodiscard]] bool begin_build(SessionGraph& holder, std::span<const std::byte> description, bool may_keep, CUgraph& graph, CUresult& result);
  void note_built(CUgraphNode node) { built_.push_back(node); }
  void end_build(std::span<const std::byte> description) { description_.assign(description.begin(), description.end()); }
  [[nodiscard]] const std::vector<CUgraphNode>& built() const { return built_; }
  // Its executable graph has left the driver.
  void forget(const SessionGraph& graph);

 private:
  const Driver& driver_;
  CUgraph graph_ = nullptr;
  const SessionGraph* taken_by_ = nullptr;      // compared, never followed
  std::atomic<SessionGraph*> holder_{nullptr};  // whose executable graph is in the driver; stored in windows, where it is followed, too
  std::vector<std::byte> description_;
  std::vector<CUgraphNode> built_;  // its nodes, not those of bodies, in the description's order
};

// Those of a session, by the client's graph and by handle. The session's worker's; release_all() is of the window that takes the session down.
class SessionConditions {
 public:
  static constexpr std::size_t kMostHandles = 16'384;

  using GraphRef = std::shared_ptr<ConditionedGraph>;
  [[nodiscard]] GraphRef find_or_add(const Driver& driver, proto::GraphId id);
  // Null: no handle of the session.
  [[nodiscard]] GraphRef find(std::uint64_t handle) const;
  // False: the graph has ended meanwhile.
  [[nodiscard]] bool add(proto::GraphId id, std::uint64_t handle);
  [[nodiscard]] GraphRef take(proto::GraphId id);
  [[nodiscard]] bool is_empty() const { return graphs_.empty(); }
  [[nodiscard]] bool has_room() const { return graph_of_.size() + wanted < kMostHandles; }
  std::size_t wanted = 0;  // handles that are being made

  void release_all();

 private:
  std::map<std::uint64_t, GraphRef> graphs_;          // by the client's id
  std::map<std::uint64_t, proto::GraphId> graph_of_;  // by handle
};

}  // namespace mpsshim::broker
