// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/graph_exec.hpp"

#include <algorithm>
#include <utility>

#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/graphs/memory_nodes.hpp"
#include "interposer/forward/stream_memory_ops.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

template <typename Work>
bool does(const WorkRef& work) {
  return std::holds_alternative<Work>(*work);
}

}  // namespace

GraphExecs& GraphExecs::instance() {
  return PerSession<GraphExecs>::get([] { return new GraphExecs(); });
}

CUresult GraphExec::prepare(const Graph& graph, std::uint64_t flags, std::unique_ptr<GraphExec>& exec, Failure& failure) {
  std::vector<FlatNode> flat;
  if (!flatten(graph, flat)) {
    failure.is_cycle = true;
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_instantiated_once = graph.has_memory_nodes || has_conditions(graph);
  if (is_instantiated_once && graph.instance->load()) return CUDA_ERROR_NOT_SUPPORTED;
  exec = std::make_unique<GraphExec>();
  exec->flags_ = flags;
  if (graph.has_memory_nodes) exec->memory_ = memory_use(flat);
  if (is_instantiated_once) {
    exec->instance_ = graph.instance;
    exec->instance_->store(true);
  }
  for (FlatNode& node : flat) {
    const auto index = static_cast<std::uint32_t>(exec->nodes_.size());
    if (node.source != proto::GraphNodeId{}) exec->index_.emplace(node.source.value, index);
    if (does<EventRecordWork>(node.work)) exec->event_records_.push_back(index);
    if (does<EventWaitWork>(node.work)) exec->event_waits_.push_back(index);
    exec->nodes_.push_back({.source = node.source, .work = std::move(node.work), .before = std::move(node.before), .staging = nullptr});
    exec->place(index);
  }
  exec->conditions_ = outermost(graph).conditions;
  if (const CUresult error = exec->check_conditions(failure); error != CUDA_SUCCESS) return error;
  exec->user_objects_ = graph.user_objects;
  UserObjects::instance().retain_all(exec->user_objects_);
  return CUDA_SUCCESS;
}

// A value that a kernel sets is read in the same launch of the driver: what sets it may be any kernel before the node.
CUresult GraphExec::check_conditions(Failure& failure) const {
  const Entry* condition = nullptr;
  for (const auto& [handle, is_used] : conditions_ != nullptr ? conditions_->is_used : std::map<CUgraphConditionalHandle, bool>()) {
    failure.has_unused_condition |= !is_used;
  }
  for (const Entry& entry : nodes_) {
    const auto* work = std::get_if<ConditionWork>(entry.work.get());
    if (work == nullptr) continue;
    failure.node = entry.source;
    if (condition != nullptr && condition->part_stage != entry.part_stage) return refuse_divided_conditions();
    if (const CUresult error = check_bodies(*work); error != CUDA_SUCCESS) return error;
    condition = &entry;
  }
  if (condition == nullptr) return CUDA_SUCCESS;
  for (const Entry& entry : nodes_) {
    if (does<KernelWork>(entry.work) && entry.part_stage < condition->part_stage) return refuse_divided_conditions();
  }
  failure.node = {};
  return CUDA_SUCCESS;
}

CUresult GraphExec::instantiate(std::unique_ptr<GraphExec> prepared, GraphExec*& exec, Failure& failure) {
  GraphStaging::reap();
  GraphExec* const made = prepared.get();
  made->id_ = GraphExecs::instance().table_.add(std::move(prepared));
  if (made->id_ == proto::GraphExecId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // the object is gone
  CUresult error = made->instantiate_parts(failure);
  const bool is_one_launch = made->stages_.size() <= 1 && (made->stages_.empty() || made->stages_.front().host_nodes.empty());
  if (error == CUDA_SUCCESS && !is_one_launch) error = Events::instance().create(CU_EVENT_DISABLE_TIMING, nullptr, made->last_launch_);
  if (error == CUDA_SUCCESS) {
    exec = made;
    return CUDA_SUCCESS;
  }
  (void)made->destroy();
  return error;
}

CUresult GraphExec::destroy() {
  // What its references keep alive may be in use until the last launch has ended.
  CUresult error = user_objects_.empty() ? CUDA_SUCCESS : Streams::instance().synchronize_all();
  for (const Stage& stage : stages_) {
    if (stage.part == nullptr) continue;
    const CUresult ended = stage.part->destroy();
    if (error == CUDA_SUCCESS) error = ended;
  }
  if (last_launch_ != nullptr) (void)Events::instance().destroy(last_launch_->id);
  UserObjects::instance().release_all(std::move(user_objects_));
  (void)GraphExecs::instance().table_.take(id_);  // this object ends here
  GraphStaging::reap();
  GraphMemory::instance().reap();
  return error;
}

CUresult GraphExec::launch(Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  const std::lock_guard lock(mutex_);
  const bool frees_first = (flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  if (const CUresult error = GraphMemory::instance().begin_launch(memory_, frees_first, stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = wait_for_events(stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = renew_outgrown(); error != CUDA_SUCCESS) return error;
  last_stream_ = stream.id;
  if (last_launch_ != nullptr) {
    if (const CUresult error = Events::instance().wait_on_stream(*last_launch_, stream, 0); error != CUDA_SUCCESS) return error;
  }
  if (const CUresult error = launch_stages(stream); error != CUDA_SUCCESS) return error;
  if (last_launch_ != nullptr) {
    if (const CUresult error = Events::instance().record(*last_launch_, stream, 0); error != CUDA_SUCCESS) return error;
  }
  return event_records_.empty() ? CUDA_SUCCESS : post_events(stream);
}

CUresult GraphExec::wait_for_events(Stream& stream) {
  for (const std::uint32_t index : event_waits_) {
    Event* event = Events::instance().resolve(std::get<EventWaitWork>(*nodes_[index].work).event);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = Events::instance().wait_on_stream(*event, stream, 0); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult GraphExec::launch_stages(Stream& stream) {
  for (const Stage& stage : stages_) {
    if (stage.part != nullptr) {
      if (const CUresult error = stage.part->launch(stream); error != CUDA_SUCCESS) return error;
    }
    if (const CUresult error = launch_host_nodes(stage, stream); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// In their order, of which runs of steps are one host function.
CUresult GraphExec::launch_host_nodes(const Stage& stage, Stream& stream) {
  std::vector<HostStep> steps;
  const auto post_steps = [&] { return steps.empty() ? CUDA_SUCCESS : post_host_steps(stream, std::exchange(steps, {})); };
  for (const std::uint32_t index : stage.host_nodes) {
    const Entry& entry = nodes_[index];
    if (!entry.is_enabled) continue;
    if (const auto* memory = std::get_if<MemoryOperationsWork>(entry.work.get())) {
      if (const CUresult error = post_steps(); error != CUDA_SUCCESS) return error;
      if (const CUresult error = post_memory_operations(stream, memory->operations); error != CUDA_SUCCESS) return error;
    } else {
      steps.push_back({entry.work, entry.staging});
    }
  }
  return post_steps();
}

// A fence behind the graph: its events are complete when it is reached.
CUresult GraphExec::post_events(Stream& stream) {
  return session().channel().post<proto::FenceRecord>(stream.id, 0, [&](proto::FenceRecord& record, std::byte*, Place) {
    record.fence_value = next_fence(stream);
    for (const std::uint32_t index : event_records_) {
      if (Event* event = Events::instance().resolve(std::get<EventRecordWork>(*nodes_[index].work).event)) {
        event->position.store(Event::pending_at(stream.word, record.fence_value), std::memory_order_release);
      }
    }
  });
}

GraphExec::Entry* GraphExec::find(proto::GraphNodeId node) {
  const auto found = index_.find(node.value);
  return found != index_.end() ? &nodes_[found->second] : nullptr;
}

CUresult GraphExec::apply(Entry& entry, const WorkRef& work) {
  if (entry.work == work || are_same(*entry.work, *work)) return CUDA_SUCCESS;
  if (const CUresult error = make_staging(entry, *work); error != CUDA_SUCCESS) return error;
  const bool is_the_executors = entry.part_stage != kNone && stages_[entry.part_stage].part != nullptr && !does<EventWaitWork>(work);
  if (is_the_executors) return change(entry, work, entry.is_enabled);
  entry.work = work;
  return CUDA_SUCCESS;
}

CUresult GraphExec::set_work(proto::GraphNodeId node, const WorkRef& work) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(node);
  if (entry == nullptr || can_become(*entry->work, *work) != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  return apply(*entry, work);
}

CUresult GraphExec::set_enabled(proto::GraphNodeId node, bool is_enabled) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(node);
  if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!does<KernelWork>(entry->work) && !does<CopyWork>(entry->work) && !does<FillWork>(entry->work)) return CUDA_ERROR_INVALID_VALUE;
  if (entry->is_enabled == is_enabled) return CUDA_SUCCESS;
  if (entry->part_stage != kNone) return change(*entry, entry->work, is_enabled);
  entry->is_enabled = is_enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::is_enabled(proto::GraphNodeId node, bool& is_enabled) {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find(node);
  if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  is_enabled = entry->is_enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::update(const Graph& graph, Failure& failure) {
  std::vector<FlatNode> flat;
  const auto refuse = [&](CUgraphExecUpdateResult result, proto::GraphNodeId node) {
    failure = {node, result, false};
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  const std::lock_guard lock(mutex_);
  if (!flatten(graph, flat)) return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, {});
  for (std::size_t i = 0; i < flat.size() && i < nodes_.size(); ++i) {
    if (nodes_[i].work->index() != flat[i].work->index()) return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, flat[i].source);
    if (nodes_[i].before != flat[i].before) return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, flat[i].source);
  }
  if (flat.size() != nodes_.size()) return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, {});
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const CUgraphExecUpdateResult result = can_become(*nodes_[i].work, *flat[i].work);
    // A node that does what it did may stay what it is, whatever it is.
    const bool differs = result != CU_GRAPH_EXEC_UPDATE_SUCCESS && !are_same(*nodes_[i].work, *flat[i].work);
    if (differs) return refuse(result, flat[i].source);
  }
  for (std::uint32_t i = 0; i < flat.size(); ++i) {
    if (const CUresult error = apply(nodes_[i], flat[i].work); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult GraphExec::update_child(const Graph& child, const Graph& graph) {
  std::vector<FlatNode> before, after;
  if (!flatten(child, before) || !flatten(graph, after)) return CUDA_ERROR_INVALID_VALUE;
  if (before.size() != after.size()) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].before != after[i].before || before[i].work->index() != after[i].work->index()) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (before[i].source == proto::GraphNodeId{}) continue;
    const Entry* entry = find(before[i].source);
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool can = can_become(*entry->work, *after[i].work) == CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (!can && !are_same(*entry->work, *after[i].work)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].source == proto::GraphNodeId{}) continue;
    if (const CUresult error = apply(*find(before[i].source), after[i].work); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
