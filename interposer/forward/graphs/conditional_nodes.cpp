// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/conditional_nodes.hpp"

#include <mutex>
#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/graph_access.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/log.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct Ended {
  proto::GraphId graph;
  std::vector<RecipeBook::Key> recipes;
};
struct EndedSets {
  Mutex mutex;
  std::vector<Ended> sets GUARDED_BY(mutex);
};
EndedSets& ended_sets() {
  return PerSession<EndedSets>::get([] { return new EndedSets(); });
}

constexpr int kSwitch = 2;  // CU_GRAPH_COND_TYPE_SWITCH, since 12.8

bool may_be_in_body(const NodeWork& work) {
  if (const auto* condition = std::get_if<ConditionWork>(&work)) return check_bodies(*condition) == CUDA_SUCCESS;
  if (const auto* copy = std::get_if<CopyWork>(&work)) return !copy->is_from_pageable() && !copy->is_to_pageable();
  return std::holds_alternative<EmptyWork>(work) || std::holds_alternative<KernelWork>(work) || std::holds_alternative<FillWork>(work);
}

template <typename T>
void put(std::vector<std::byte>& bytes, const T& value) {
  const auto more = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

bool has_such_bodies(const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  switch (static_cast<int>(params.type)) {
    case CU_GRAPH_COND_TYPE_IF: return params.size == 1 || params.size == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return params.size == 1;
    case kSwitch: return params.size >= 1;
    default: return false;
  }
}

CUresult check_bodies(const ConditionWork& condition) {
  for (const FlatBody& body : *condition.bodies) {
    for (const FlatNode& node : body) {
      if (!may_be_in_body(*node.work)) return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult refuse_divided_conditions() {
  static std::once_flag said;
  std::call_once(said, [] {
    log_line(
        "a graph with conditional nodes is not instantiated: host functions, copies of pageable memory or memory operations stand between its "
        "kernels and such a node, and the value that a kernel sets would not reach it; put them behind it, or in a graph of their own");
  });
  return CUDA_ERROR_NOT_SUPPORTED;
}

std::vector<std::byte> payload_of(const ConditionWork& condition) {
  std::vector<std::byte> bytes;
  put(bytes, proto::GraphCondition{condition.handle, condition.type, static_cast<std::uint32_t>(condition.bodies->size())});
  for (const FlatBody& body : *condition.bodies) {
    std::vector<std::byte> nodes;
    for (std::uint32_t i = 0; i < body.size(); ++i) encode(*body[i].work, i, true, body[i].before, nodes);
    put(bytes, proto::GraphBody{static_cast<std::uint32_t>(body.size()), static_cast<std::uint32_t>(nodes.size())});
    bytes.insert(bytes.end(), nodes.begin(), nodes.end());
  }
  return bytes;
}

// Whoever lets go of the last reference may hold mutexes.
ConditionSet::~ConditionSet() {
  if (is_used.empty()) return;
  EndedSets& ended = ended_sets();
  const std::lock_guard lock(ended.mutex);
  ended.sets.push_back({graph, std::move(recipes)});
}

void end_conditions() {
  std::vector<Ended> sets;
  {
    EndedSets& ended = ended_sets();
    const std::lock_guard lock(ended.mutex);
    sets = std::exchange(ended.sets, {});
  }
  for (const Ended& one : sets) {
    // An error ends the session, and these with it.
    (void)session().channel().post<proto::ConditionsEndRecord>({}, 0, [&](proto::ConditionsEndRecord& record, std::byte*, Place place) {
      record.graph = one.graph;
      for (const RecipeBook::Key key : one.recipes) session().end_recipe(key, place);
    });
  }
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph, CUcontext ctx, unsigned int defaultLaunchValue,
                                        unsigned int flags) {
  if (pHandle_out == nullptr || (flags & ~static_cast<unsigned>(CU_GRAPH_COND_ASSIGN_DEFAULT)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (ctx != nullptr && !find_context_or_current(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  end_conditions();
  proto::ConditionCreateRecord record{};
  record.default_value = defaultLaunchValue;
  record.flags = flags;
  const CUresult found = with_graph(hGraph, [&](Graph& graph) {
    record.graph = outermost(graph).id;
    return CUDA_SUCCESS;
  });
  if (found != CUDA_SUCCESS) return found;
  const auto with_handle = [&](const proto::ConditionCreateReply& made) {
    proto::ConditionCreateRecord again = record;
    again.expected = made.handle;
    return recipe_of({}, again, 0);
  };
  proto::ConditionCreateReply reply{};
  Answer answer;
  RecipeBook::Key recipe = 0;
  if (const CUresult error = session().call_kept(record, {}, reply, answer, recipe, with_handle); error != CUDA_SUCCESS) return error;
  return with_graph(to_handle<CUgraph>(record.graph), [&](Graph& graph) {
    if (graph.conditions == nullptr) graph.conditions = std::make_shared<ConditionSet>();
    graph.conditions->graph = graph.id;
    graph.conditions->is_used.emplace(reply.handle, false);
    graph.conditions->recipes.push_back(recipe);
    *pHandle_out = reply.handle;
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
