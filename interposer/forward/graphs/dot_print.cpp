// SPDX-License-Identifier: Apache-2.0
// A graph as a DOT file (CUDA Driver API manual, "Graph Management": cuGraphDebugDotPrint).
#include <cstdio>
#include <string>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/graph_access.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

const char* name_of(CUgraphNodeType type) {
  switch (static_cast<int>(type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "BATCH_MEM_OP";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    default: return "EMPTY";
  }
}

std::string describe(const NodeWork& work) {
  char text[160] = "";
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    const Function* function = Functions::instance().resolve(to_handle<CUfunction>(kernel->launch.function));
    const proto::LaunchRecord& launch = kernel->launch;
    std::snprintf(text, sizeof text, "\\n<<<(%u,%u,%u),(%u,%u,%u),%u>>>", launch.grid_x, launch.grid_y, launch.grid_z, launch.block_x, launch.block_y,
                  launch.block_z, launch.shared_bytes);
    return "\\n" + (function != nullptr ? function->name : std::string("(unloaded)")) + text;
  }
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    const proto::GraphCopy& box = copy->copy;
    std::snprintf(text, sizeof text, "\\n0x%llx -> 0x%llx, %llu x %llu x %llu", static_cast<unsigned long long>(box.source),
                  static_cast<unsigned long long>(box.destination), static_cast<unsigned long long>(box.width_bytes),
                  static_cast<unsigned long long>(box.height), static_cast<unsigned long long>(box.depth));
  } else if (const auto* fill = std::get_if<FillWork>(&work)) {
    std::snprintf(text, sizeof text, "\\n0x%llx, %zu x %zu of 0x%x", static_cast<unsigned long long>(fill->params.dst), fill->params.width,
                  fill->params.height, fill->params.value);
  }
  return text;
}

void print(std::FILE* file, const Graph& graph, unsigned& clusters) {
  std::fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\" graph[style=\"dashed\"];\n", clusters, clusters);
  ++clusters;
  for (const Node* node : graph.nodes) {
    const std::string text = describe(*node->work);
    std::fprintf(file, "\"node_%u\"[shape=\"rectangle\" label=\"%u\\n%s%s\"];\n", node->id.index(), node->id.index(), name_of(type_of(*node->work)),
                 text.c_str());
    if (node->child != nullptr) print(file, *node->child, clusters);
  }
  for (const Node* node : graph.nodes) {
    for (const Edge& edge : node->before) std::fprintf(file, "\"node_%u\" -> \"node_%u\";\n", edge.node->id.index(), node->id.index());
  }
  std::fprintf(file, "}\n");
}

}  // namespace

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_graph(hGraph, [&](const Graph& graph) {
    std::FILE* file = std::fopen(path, "we");
    if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
    std::fprintf(file, "digraph dot {\n");
    unsigned clusters = 1;
    print(file, graph, clusters);
    std::fprintf(file, "}\n");
    const bool is_written = std::ferror(file) == 0;
    return std::fclose(file) == 0 && is_written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}

}  // namespace mpsshim::interposer::api
