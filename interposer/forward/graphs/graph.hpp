// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes and the order between them (CUDA Driver API manual, "Graph Management"). All of it lives in this process; the executor hears
// of a graph when it is instantiated (graph_exec.hpp). Handles are ids.
//
// CUDA leaves it to the application not to change a graph in two threads at once. Here one mutex for all graphs and captures, held by the
// functions of graphs/*_api.cpp and by Captures, keeps a mistake from becoming a crash: whoever calls the functions below holds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/graphs/node_work.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct ConditionSet;
struct Graph;
struct Node;

struct Edge {
  Node* node = nullptr;
  CUgraphEdgeData data{};
};

struct Node {
  proto::GraphNodeId id;
  Graph* graph = nullptr;
  WorkRef work;
  Graph* child = nullptr;        // of a child node, which owns it
  std::vector<Graph*> bodies;    // of a conditional node, which owns them
  std::vector<CUgraph> body_handles;  // the same, as the application sees them
  proto::GraphNodeId original;   // what it is a clone of
  std::vector<Edge> before;      // what it depends on, in the order of adding
  std::vector<Edge> dependents;  // the other way round
};

struct Graph {
  proto::GraphId id;
  std::vector<Node*> nodes;  // in the order of adding
  Node* owner = nullptr;     // the child or conditional node whose graph it is
  proto::GraphId original;   // what it is a clone of
  bool is_captured_into = false;
  // Memory that its nodes allocate, one entry a block; `freed`: the node that frees it last, if nothing allocates it behind that.
  struct Block {
    std::shared_ptr<GraphBlock> block;
    const Node* freed = nullptr;
  };
  std::vector<Block> blocks;
  bool has_memory_nodes = false;  // then it is neither cloned nor taken apart, and instantiated once at a time
  std::shared_ptr<std::atomic<bool>> instance = std::make_shared<std::atomic<bool>>(false);  // such a graph is instantiated
  std::shared_ptr<ConditionSet> conditions;  // handles made for it and the graphs in it (conditional_nodes.hpp); null: none
  std::map<std::uint64_t, unsigned> user_objects;                                            // references that it holds, by object
};

class Graphs {
 public:
  [[nodiscard]] static Graphs& instance();
  [[nodiscard]] Mutex& mutex() { return mutex_; }

  // Null if the handle is none.
  [[nodiscard]] Graph* resolve(CUgraph handle) { return graphs_.find(id_of<proto::HandleKind::graph>(handle)).get(); }
  [[nodiscard]] Node* resolve(CUgraphNode handle) { return find(id_of<proto::HandleKind::graph_node>(handle)); }
  [[nodiscard]] Node* find(proto::GraphNodeId id) { return nodes_.find(id).get(); }

  // Null: there is no room for more.
  [[nodiscard]] Graph* create();
  void destroy(Graph& graph);
  // CUDA_ERROR_OUT_OF_MEMORY: there is no room for more. `original` and what it is of stay; child graphs are cloned as well.
  [[nodiscard]] CUresult clone(const Graph& original, Graph*& clone);

  // A node that depends on `before`: nodes of the graph, each named once.
  [[nodiscard]] CUresult add(Graph& graph, WorkRef work, const std::vector<Edge>& before, Node*& node);
  // A node that holds a clone of `child`.
  [[nodiscard]] CUresult add_child(Graph& graph, const Graph& child, const std::vector<Edge>& before, Node*& node);
  // A node with empty bodies, as many as are asked for.
  [[nodiscard]] CUresult add_condition(Graph& graph, const ConditionWork& work, std::size_t bodies, const std::vector<Edge>& before, Node*& node);
  void remove(Node& node);

  // CUDA_ERROR_INVALID_VALUE: the edge is there already, or leads from a node to itself.
  [[nodiscard]] static CUresult connect(Node& from, Node& to, const CUgraphEdgeData& data);
  // CUDA_ERROR_INVALID_VALUE: there is no such edge.
  [[nodiscard]] static CUresult disconnect(Node& from, Node& to);

 private:
  proto::HandleTable<proto::HandleKind::graph, Graph> graphs_{ActingSession::index()};
  proto::HandleTable<proto::HandleKind::graph_node, Node> nodes_{ActingSession::index()};
  Mutex mutex_;
};

// A graph's nodes one after another, child graphs taken apart, in an order that keeps all dependencies and is that of adding where these leave
// a choice: two graphs made in the same way have the same list.
struct FlatNode {
  proto::GraphNodeId source;  // {}: stands for a child graph's beginning or end
  WorkRef work;
  std::vector<std::uint32_t> before;
};
// The graph that it lies in, outside of all others.
template <typename AnyGraph>
[[nodiscard]] AnyGraph& outermost(AnyGraph& graph) {
  AnyGraph* outer = &graph;
  while (outer->owner != nullptr) outer = outer->owner->graph;
  return *outer;
}
// It, or a graph in it, has a conditional node.
[[nodiscard]] bool has_conditions(const Graph& graph);
// False: there is a cycle, in the graph or in a conditional node's body.
[[nodiscard]] bool flatten(const Graph& graph, std::vector<FlatNode>& nodes);

}  // namespace mpsshim::interposer::forward
