// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/graph.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "interposer/forward/graphs/user_objects.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

bool has(const std::vector<Edge>& edges, const Node& node) {
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.node == &node; });
}

void erase(std::vector<Edge>& edges, const Node& node) {
  std::erase_if(edges, [&](const Edge& edge) { return edge.node == &node; });
}

}  // namespace

Graphs& Graphs::instance() {
  return PerSession<Graphs>::get([] { return new Graphs(); });
}

Graph* Graphs::create() {
  auto object = std::make_unique<Graph>();
  Graph* graph = object.get();
  const proto::GraphId id = graphs_.add(std::move(object));
  if (id == proto::GraphId{}) return nullptr;
  graph->id = id;
  return graph;
}

void Graphs::destroy(Graph& graph) {
  for (Node* node : graph.nodes) {
    if (node->child != nullptr) destroy(*node->child);
    for (Graph* body : node->bodies) destroy(*body);
    (void)nodes_.take(node->id);
  }
  UserObjects::instance().release_all(std::move(graph.user_objects));
  (void)graphs_.take(graph.id);
}

CUresult Graphs::add(Graph& graph, WorkRef work, const std::vector<Edge>& before, Node*& node) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t j = 0; j < i; ++j) {
      if (before[j].node == before[i].node) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  auto object = std::make_unique<Node>();
  Node* added = object.get();
  added->graph = &graph;
  added->work = std::move(work);
  const proto::GraphNodeId id = nodes_.add(std::move(object));
  if (id == proto::GraphNodeId{}) return CUDA_ERROR_OUT_OF_MEMORY;
  added->id = id;
  added->before = before;
  for (const Edge& edge : before) edge.node->dependents.push_back({added, edge.data});
  graph.nodes.push_back(added);
  node = added;
  return CUDA_SUCCESS;
}

CUresult Graphs::add_child(Graph& graph, const Graph& child, const std::vector<Edge>& before, Node*& node) {
  Graph* copy = nullptr;
  if (const CUresult error = clone(child, copy); error != CUDA_SUCCESS) return error;
  const CUresult error = add(graph, std::make_shared<const NodeWork>(ChildWork{}), before, node);
  if (error != CUDA_SUCCESS) {
    destroy(*copy);
    return error;
  }
  copy->owner = node;
  node->child = copy;
  return CUDA_SUCCESS;
}

CUresult Graphs::add_condition(Graph& graph, const ConditionWork& work, std::size_t bodies, const std::vector<Edge>& before, Node*& node) {
  if (const CUresult error = add(graph, std::make_shared<const NodeWork>(work), before, node); error != CUDA_SUCCESS) return error;
  for (std::size_t i = 0; i < bodies; ++i) {
    Graph* body = create();
    if (body == nullptr) {
      remove(*node);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    body->owner = node;
    node->bodies.push_back(body);
    node->body_handles.push_back(to_handle<CUgraph>(body->id));
  }
  return CUDA_SUCCESS;
}

CUresult Graphs::clone(const Graph& original, Graph*& clone) {
  if (original.has_memory_nodes || has_conditions(original)) return CUDA_ERROR_NOT_SUPPORTED;
  Graph* copy = create();
  if (copy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  copy->original = original.id;
  std::unordered_map<const Node*, Node*> copy_of;
  for (const Node* node : original.nodes) {
    Node* added = nullptr;
    const CUresult error = node->child != nullptr ? add_child(*copy, *node->child, {}, added) : add(*copy, node->work, {}, added);
    if (error != CUDA_SUCCESS) {
      destroy(*copy);
      return error;
    }
    added->original = node->id;
    copy_of[node] = added;
  }
  // Edges may lead from later nodes to earlier ones.
  for (const Node* node : original.nodes) {
    for (const Edge& edge : node->before) copy_of[node]->before.push_back({copy_of[edge.node], edge.data});
    for (const Edge& edge : node->dependents) copy_of[node]->dependents.push_back({copy_of[edge.node], edge.data});
  }
  copy->user_objects = original.user_objects;
  UserObjects::instance().retain_all(copy->user_objects);
  clone = copy;
  return CUDA_SUCCESS;
}

void Graphs::remove(Node& node) {
  for (const Edge& edge : node.before) erase(edge.node->dependents, node);
  for (const Edge& edge : node.dependents) erase(edge.node->before, node);
  if (node.child != nullptr) destroy(*node.child);
  for (Graph* body : node.bodies) destroy(*body);
  std::erase(node.graph->nodes, &node);
  (void)nodes_.take(node.id);
}

CUresult Graphs::connect(Node& from, Node& to, const CUgraphEdgeData& data) {
  if (&from == &to || has(to.before, from)) return CUDA_ERROR_INVALID_VALUE;
  to.before.push_back({&from, data});
  from.dependents.push_back({&to, data});
  return CUDA_SUCCESS;
}

CUresult Graphs::disconnect(Node& from, Node& to) {
  if (!has(to.before, from)) return CUDA_ERROR_INVALID_VALUE;
  erase(to.before, from);
  erase(from.dependents, to);
  return CUDA_SUCCESS;
}

namespace {

const WorkRef& empty_work() {
  static const auto* work = new WorkRef(std::make_shared<const NodeWork>(EmptyWork{}));
  return *work;
}

class Flattening {
 public:
  explicit Flattening(std::vector<FlatNode>& nodes) : nodes_(nodes) {}

  // What `graph` ends with is in `last`; all of it comes after `before`.
  bool add(const Graph& graph, const std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& last) {
    std::unordered_map<const Node*, std::size_t> missing;
    std::unordered_map<const Node*, std::vector<std::uint32_t>> end_of;
    std::vector<const Node*> ready;  // a queue: `next` is its front
    for (const Node* node : graph.nodes) {
      missing[node] = node->before.size();
      if (node->before.empty()) ready.push_back(node);
    }
    for (std::size_t next = 0; next < ready.size(); ++next) {
      const Node* const node = ready[next];
      std::vector<std::uint32_t> after = node->before.empty() ? before : std::vector<std::uint32_t>{};
      for (const Edge& edge : node->before) after.insert(after.end(), end_of[edge.node].begin(), end_of[edge.node].end());
      if (!add(*node, after, end_of[node])) return false;
      if (node->dependents.empty()) last.insert(last.end(), end_of[node].begin(), end_of[node].end());
      for (const Edge& edge : node->dependents) {
        if (--missing[edge.node] == 0) ready.push_back(edge.node);
      }
    }
    return ready.size() == graph.nodes.size();
  }

 private:
  bool add(const Node& node, const std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& end) {
    if (!node.bodies.empty()) {
      WorkRef work;
      if (!with_bodies(node, work)) return false;
      end = {push(node.id, work, before)};
      return true;
    }
    if (node.child == nullptr) {
      end = {push(node.id, node.work, before)};
      return true;
    }
    // One node before and one behind: without them everything in front would be connected with every beginning.
    const std::vector<std::uint32_t> entrance = before.size() > 1 ? std::vector{push({}, empty_work(), before)} : before;
    std::vector<std::uint32_t> last;
    if (!add(*node.child, entrance, last)) return false;
    end = last.size() == 1 ? last : std::vector{push({}, empty_work(), last.empty() ? entrance : last)};
    return true;
  }

  static bool with_bodies(const Node& node, WorkRef& work) {
    std::vector<FlatBody> bodies(node.bodies.size());
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      if (!flatten(*node.bodies[i], bodies[i])) return false;
    }
    ConditionWork condition = std::get<ConditionWork>(*node.work);
    condition.bodies = std::make_shared<const std::vector<FlatBody>>(std::move(bodies));
    work = std::make_shared<const NodeWork>(std::move(condition));
    return true;
  }

  std::uint32_t push(proto::GraphNodeId source, const WorkRef& work, const std::vector<std::uint32_t>& before) {
    nodes_.push_back({source, work, before});
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }

  std::vector<FlatNode>& nodes_;
};

}  // namespace

bool has_conditions(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node* node) { return !node->bodies.empty() || (node->child != nullptr && has_conditions(*node->child)); });
}

bool flatten(const Graph& graph, std::vector<FlatNode>& nodes) {
  std::vector<std::uint32_t> last;
  return Flattening(nodes).add(graph, {}, last);
}

}  // namespace mpsshim::interposer::forward
