// SPDX-License-Identifier: Apache-2.0
// Graphs as such: made, cloned, ended, their nodes and edges asked for and changed (CUDA Driver API manual, "Graph Management").
#include <algorithm>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/graphs/graph.hpp"
#include "interposer/forward/graphs/graph_access.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"
#include "interposer/forward/graphs/user_objects.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Lists as CUDA answers them: without room for them how long they are; with room for *count that many, the rest null.
template <typename Item>
class ListAnswer {
 public:
  ListAnswer(Item* first, size_t room) : first_(first), room_(room) {}
  void operator()(size_t index, const Item& item) {
    if (first_ != nullptr && index < room_) first_[index] = item;
  }

 private:
  Item* first_;
  size_t room_;
};

CUresult answer_nodes(const std::vector<CUgraphNode>& found, CUgraphNode* nodes, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = found.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < found.size() ? found[i] : nullptr;
  *count = std::min(*count, found.size());
  return CUDA_SUCCESS;
}

// Edges of one node. Without room for their data, data that says something is an error.
CUresult answer_edges(const std::vector<Edge>& found, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  if (count == nullptr || (data != nullptr && nodes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> handles;
  for (const Edge& edge : found) handles.push_back(to_handle<CUgraphNode>(edge.node->id));
  if (nodes != nullptr) {
    for (size_t i = 0; i < std::min(*count, found.size()); ++i) {
      if (data != nullptr)
        data[i] = found[i].data;
      else if (has_ports(found[i].data))
        return CUDA_ERROR_LOSSY_QUERY;
    }
  }
  return answer_nodes(handles, nodes, count);
}

template <typename Change>
CUresult for_each_pair(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to, size_t count, Change&& change) {
  return with_graph(hGraph, [&](Graph& graph) {
    if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      Node* first = Graphs::instance().resolve(from[i]);
      Node* second = Graphs::instance().resolve(to[i]);
      if (first == nullptr || second == nullptr || first->graph != &graph || second->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      if (const CUresult error = change(*first, *second, i); error != CUDA_SUCCESS) return error;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(Graphs::instance().mutex());
  const Graph* graph = Graphs::instance().create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *phGraph = to_handle<CUgraph>(graph->id);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  const CUresult error = with_graph(hGraph, [](Graph& graph) {
    if (graph.owner != nullptr || graph.is_captured_into) return CUDA_ERROR_INVALID_VALUE;
    Graphs::instance().destroy(graph);
    return CUDA_SUCCESS;
  });
  UserObjects::instance().run_destructors();
  GraphMemory::instance().reap();
  end_conditions();
  return error;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  if (phGraphClone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_graph(originalGraph, [&](Graph& graph) {
    Graph* clone = nullptr;
    const CUresult error = Graphs::instance().clone(graph, clone);
    if (error == CUDA_SUCCESS) *phGraphClone = to_handle<CUgraph>(clone->id);
    return error;
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
  if (phNode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_graph(hClonedGraph, [&](Graph& graph) {
    for (const Node* node : graph.nodes) {
      if (node->original != id_of<proto::HandleKind::graph_node>(hOriginalNode)) continue;
      *phNode = to_handle<CUgraphNode>(node->id);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  return with_node(hNode, [](Node& node) {
    if (node.graph->has_memory_nodes) return CUDA_ERROR_NOT_SUPPORTED;
    Graphs::instance().remove(node);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_node(hNode, [&](const Node& node) {
    *type = type_of(*node.work);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  return with_graph(hGraph, [&](const Graph& graph) {
    std::vector<CUgraphNode> found;
    for (const Node* node : graph.nodes) found.push_back(to_handle<CUgraphNode>(node->id));
    return answer_nodes(found, nodes, numNodes);
  });
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  return with_graph(hGraph, [&](const Graph& graph) {
    std::vector<CUgraphNode> found;
    for (const Node* node : graph.nodes) {
      if (node->before.empty()) found.push_back(to_handle<CUgraphNode>(node->id));
    }
    return answer_nodes(found, rootNodes, numRootNodes);
  });
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
  return api::cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edgeData, size_t* numEdges) {
  if (numEdges == nullptr || (from == nullptr) != (to == nullptr) || (edgeData != nullptr && from == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return with_graph(hGraph, [&](const Graph& graph) {
    ListAnswer<CUgraphNode> first(from, *numEdges), second(to, *numEdges);
    ListAnswer<CUgraphEdgeData> data(edgeData, *numEdges);
    size_t count = 0;
    for (const Node* node : graph.nodes) {
      for (const Edge& edge : node->before) {
        if (from != nullptr && edgeData == nullptr && count < *numEdges && has_ports(edge.data)) return CUDA_ERROR_LOSSY_QUERY;
        first(count, to_handle<CUgraphNode>(edge.node->id));
        second(count, to_handle<CUgraphNode>(node->id));
        data(count, edge.data);
        ++count;
      }
    }
    for (size_t i = count; i < *numEdges; ++i) {
      first(i, nullptr);
      second(i, nullptr);
    }
    *numEdges = from != nullptr ? std::min(*numEdges, count) : count;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies, size_t* numDependencies) {
  return api::cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies, CUgraphEdgeData* edgeData, size_t* numDependencies) {
  return with_node(hNode, [&](const Node& node) { return answer_edges(node.before, dependencies, edgeData, numDependencies); });
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes, size_t* numDependentNodes) {
  return api::cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes, CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
  return with_node(hNode, [&](const Node& node) { return answer_edges(node.dependents, dependentNodes, edgeData, numDependentNodes); });
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to, size_t numDependencies) {
  return api::cuGraphAddDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edgeData,
                                   size_t numDependencies) {
  return for_each_pair(hGraph, from, to, numDependencies, [&](Node& first, Node& second, size_t i) {
    const CUgraphEdgeData data = edgeData != nullptr ? edgeData[i] : CUgraphEdgeData{};
    return is_valid_edge(first, second, data) ? Graphs::connect(first, second, data) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to, size_t numDependencies) {
  return api::cuGraphRemoveDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*,
                                      size_t numDependencies) {
  return for_each_pair(hGraph, from, to, numDependencies, [](Node& first, Node& second, size_t) {
    return first.graph->has_memory_nodes ? CUDA_ERROR_NOT_SUPPORTED : Graphs::disconnect(first, second);
  });
}

}  // namespace mpsshim::interposer::api
