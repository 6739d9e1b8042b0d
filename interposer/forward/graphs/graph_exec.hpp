// SPDX-License-Identifier: Apache-2.0
// Executable graphs: a graph's nodes as they were at instantiation, given to the executor, changed one by one, launched in streams. This
// object is the recipe as well: description and changes are posted again to the next executor (RecipeBook), each node's latest change.
//
// What this process does of a graph (host_steps.hpp) divides it into stages: a part that the executor runs, then the host's steps, then the next
// stage. A node belongs to the first stage in which all that it depends on is done before it.
// A launch waits for the events of wait nodes in its stream, in front of the whole graph; an event that the graph records is complete once the
// whole graph is. Any thread; one graph is not to be used by two at once, and its mutex sees to it. No function holds the graphs' mutex
// while it waits for the executor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/exec_part.hpp"
#include "interposer/forward/graphs/graph.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"
#include "interposer/forward/graphs/host_steps.hpp"
#include "interposer/forward/graphs/user_objects.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class GraphExec {
 public:
  GraphExec() = default;
  ~GraphExec() {
    if (instance_ != nullptr) instance_->store(false);
  }
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;
  // Where an instantiation or an update failed, by the graph's own node.
  struct Failure {
    proto::GraphNodeId node;
    CUgraphExecUpdateResult update = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    bool is_cycle = false;
    bool has_unused_condition = false;
  };

  // The graph's nodes, taken with the graphs' mutex held; then the executor is asked without it.
  // CUDA_ERROR_NOT_SUPPORTED: it has memory nodes and is instantiated already.
  [[nodiscard]] static CUresult prepare(const Graph& graph, std::uint64_t flags, std::unique_ptr<GraphExec>& exec, Failure& failure);
  [[nodiscard]] static CUresult instantiate(std::unique_ptr<GraphExec> prepared, GraphExec*& exec, Failure& failure);
  [[nodiscard]] CUresult destroy();

  [[nodiscard]] proto::GraphExecId id() const { return id_; }
  [[nodiscard]] std::uint64_t flags() const { return flags_; }

  [[nodiscard]] CUresult launch(Stream& stream);

  // CUDA_ERROR_INVALID_VALUE: the node is not of the graph that this was made of, or may not change so.
  [[nodiscard]] CUresult set_work(proto::GraphNodeId node, const WorkRef& work);
  [[nodiscard]] CUresult set_enabled(proto::GraphNodeId node, bool is_enabled);
  [[nodiscard]] CUresult is_enabled(proto::GraphNodeId node, bool& is_enabled);
  // All nodes become those of `graph`. The graphs' mutex is held.
  [[nodiscard]] CUresult update(const Graph& graph, Failure& failure);
  // The nodes of one child graph become those of another, or it is CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE. `child` is the graph of the child
  // node. The graphs' mutex is held.
  [[nodiscard]] CUresult update_child(const Graph& child, const Graph& graph);

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Entry {
    proto::GraphNodeId source;
    WorkRef work;
    std::vector<std::uint32_t> before;
    bool is_enabled = true;
    // Where it is done: by the executor, here, or first here and then there (copies from pageable memory) or the other way round.
    std::uint32_t part_stage = kNone;
    std::uint32_t part_node = kNone;
    std::uint32_t host_stage = kNone;
    std::shared_ptr<GraphStaging> staging;
    std::size_t room_bytes = 0;  // for a kernel's parameters, in the executor's node
    bool is_behind = false;      // the executor has not been told yet what it does
  };
  struct Stage {
    std::unique_ptr<ExecPart> part;         // null: the executor has nothing to do
    std::vector<std::uint32_t> part_nodes;  // nodes of the graph, by their number in the part
    std::vector<std::uint32_t> host_nodes;  // done here afterwards, in this order
    bool is_outgrown = false;               // a node's kernel has more parameters than there is room for: the part is made anew at the next launch
  };

  void place(std::uint32_t index);
  [[nodiscard]] CUresult check_conditions(Failure& failure) const;
  [[nodiscard]] Stage& stage(std::uint32_t number);
  [[nodiscard]] CUresult instantiate_parts(Failure& failure);
  void describe(std::uint32_t number, ExecPart& part);
  void note_room(const Stage& stage);
  [[nodiscard]] CUresult renew_outgrown();
  [[nodiscard]] CUresult renew(std::uint32_t number);
  [[nodiscard]] CUresult follow_last_launch();
  [[nodiscard]] CUresult make_staging(Entry& entry, const NodeWork& work);
  [[nodiscard]] static WorkRef part_work(const Entry& entry, const WorkRef& work);
  [[nodiscard]] Entry* find(proto::GraphNodeId node);
  [[nodiscard]] CUresult apply(Entry& entry, const WorkRef& work);
  [[nodiscard]] CUresult change(Entry& entry, const WorkRef& work, bool is_enabled);
  [[nodiscard]] CUresult wait_for_events(Stream& stream);
  [[nodiscard]] CUresult launch_stages(Stream& stream);
  [[nodiscard]] CUresult launch_host_nodes(const Stage& stage, Stream& stream);
  [[nodiscard]] CUresult post_events(Stream& stream);

  proto::GraphExecId id_;
  std::uint64_t flags_ = 0;
  GraphMemoryUse memory_;
  std::shared_ptr<std::atomic<bool>> instance_;  // Graph::instance, of a graph with memory or conditional nodes
  std::shared_ptr<ConditionSet> conditions_;
  Mutex mutex_;
  std::vector<Entry> nodes_;
  std::unordered_map<std::uint64_t, std::uint32_t> index_;  // of a graph's node, by its id
  std::vector<Stage> stages_;
  std::vector<std::uint32_t> event_records_;
  std::vector<std::uint32_t> event_waits_;
  Event* last_launch_ = nullptr;  // where a launch is several operations of its stream: launches of one graph follow each other
  proto::StreamId last_stream_{};  // of the last launch
  UserObjects::References user_objects_;
};

class GraphExecs {
 public:
  [[nodiscard]] static GraphExecs& instance();
  // Null if the handle is none.
  [[nodiscard]] GraphExec* resolve(CUgraphExec handle) { return table_.find(id_of<proto::HandleKind::graph_exec>(handle)).get(); }

 private:
  friend class GraphExec;
  proto::HandleTable<proto::HandleKind::graph_exec, GraphExec> table_{ActingSession::index()};
};

}  // namespace mpsshim::interposer::forward
