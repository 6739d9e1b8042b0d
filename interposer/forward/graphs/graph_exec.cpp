// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/graph_exec.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/capture.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kPieceBytes = 48 << 10;  // of a description in one record: well below the longest, so that several fit in the ring

template <typename Work>
bool does(const WorkRef& work) {
  return std::holds_alternative<Work>(*work);
}

std::vector<std::byte> encoded(const NodeWork& work) {
  std::vector<std::byte> bytes;
  encode(work, 0, true, {}, bytes);
  return bytes;
}

}  // namespace

GraphExecs& GraphExecs::instance() {
  static auto* execs = new GraphExecs();  // never destroyed
  return *execs;
}

CUresult GraphExec::prepare(const Graph& graph, std::uint64_t flags, std::unique_ptr<GraphExec>& exec, Failure& failure) {
  std::vector<FlatNode> flat;
  if (!flatten(graph, flat)) {
    failure.is_cycle = true;
    return CUDA_ERROR_INVALID_VALUE;
  }
  exec = std::make_unique<GraphExec>();
  exec->flags_ = flags;
  for (FlatNode& node : flat) {
    const auto index = static_cast<std::uint32_t>(exec->nodes_.size());
    if (node.source != proto::GraphNodeId{}) exec->index_.emplace(node.source.value, index);
    if (does<EventRecordWork>(node.work)) exec->event_records_.push_back(index);
    if (does<EventWaitWork>(node.work)) exec->event_waits_.push_back(index);
    exec->nodes_.push_back({node.source, std::move(node.work), std::move(node.before)});
  }
  exec->user_objects_ = graph.user_objects;
  UserObjects::instance().retain_all(exec->user_objects_);
  return CUDA_SUCCESS;
}

CUresult GraphExec::instantiate(std::unique_ptr<GraphExec> prepared, GraphExec*& exec, Failure& failure) {
  GraphExec* const made = prepared.get();
  made->id_ = GraphExecs::instance().table_.add(std::move(prepared));
  if (made->id_ == proto::GraphExecId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // the object is gone
  CUresult error = made->post_description();
  if (error == CUDA_SUCCESS) error = made->call_instantiate(failure);
  if (error == CUDA_SUCCESS) {
    exec = made;
    return CUDA_SUCCESS;
  }
  (void)made->destroy();
  return error;
}

std::vector<std::byte> GraphExec::description() const {
  std::vector<std::byte> bytes;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) encode(*nodes_[i].work, i, nodes_[i].is_enabled, nodes_[i].before, bytes);
  return bytes;
}

CUresult GraphExec::post_description() {
  const std::vector<std::byte> bytes = description();
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const auto piece = std::span(bytes).subspan(at, std::min(kPieceBytes, bytes.size() - at));
    const CUresult error =
        session().channel().post<proto::GraphNodesRecord>({}, piece.size(), [&](proto::GraphNodesRecord& record, std::byte* trailing, Place place) {
          record.exec = id_;
          std::memcpy(trailing, piece.data(), piece.size());
          recipes_.push_back(session().recipes().add(recipe_of({}, record, place.position, piece)));
        });
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult GraphExec::call_instantiate(Failure& failure) {
  proto::GraphInstantiateRecord record{};
  record.exec = id_;
  record.flags = flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  record.node_count = static_cast<std::uint32_t>(nodes_.size());
  proto::GraphInstantiateRecord again = record;
  again.restores = 1;
  proto::GraphInstantiateReply reply{};
  Answer answer;
  RecipeBook::Key key = 0;
  do {
    answer = Answer{};
    const CUresult error = session().channel().call({}, record, {}, Repeat::harmless, reply, &answer);
    if (error != CUDA_SUCCESS) {
      if (answer.payload.size() >= sizeof reply) std::memcpy(&reply, answer.payload.data(), sizeof reply);
      if (reply.failed_node < nodes_.size()) failure.node = nodes_[reply.failed_node].source;
      return error;
    }
  } while (!session().keep_recipe(recipe_of({}, again, 0), answer, key));
  recipes_.push_back(key);
  return CUDA_SUCCESS;
}

CUresult GraphExec::destroy() {
  // What its references keep alive may be in use until the last launch has ended.
  CUresult error = user_objects_.empty() ? CUDA_SUCCESS : Streams::instance().synchronize_all();
  if (error == CUDA_SUCCESS) {
    error = session().channel().post<proto::GraphExecDestroyRecord>({}, 0, [&](proto::GraphExecDestroyRecord& record, std::byte*, Place place) {
      record.exec = id_;
      for (const RecipeBook::Key key : recipes_) session().end_recipe(key, place);
      for (const Entry& entry : nodes_) session().end_recipe(entry.recipe, place);
    });
  }
  UserObjects::instance().release_all(std::move(user_objects_));
  (void)GraphExecs::instance().table_.take(id_);  // this object ends here
  return error;
}

CUresult GraphExec::launch(Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().add_launch(stream, *this);
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t index : event_waits_) {
    Event* event = Events::instance().resolve(std::get<EventWaitWork>(*nodes_[index].work).event);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = Events::instance().wait_on_stream(*event, stream, 0); error != CUDA_SUCCESS) return error;
  }
  const CUresult error = post_work<proto::GraphLaunchRecord>(stream, 0, [&](proto::GraphLaunchRecord& record, std::byte*) { record.exec = id_; });
  return error != CUDA_SUCCESS || event_records_.empty() ? error : post_events(stream);
}

// A fence behind the graph: its events are complete when it is reached.
CUresult GraphExec::post_events(Stream& stream) {
  return session().channel().post<proto::FenceRecord>(stream.id, 0, [&](proto::FenceRecord& record, std::byte*, Place) {
    record.value = next_fence(stream);
    for (const std::uint32_t index : event_records_) {
      if (Event* event = Events::instance().resolve(std::get<EventRecordWork>(*nodes_[index].work).event)) {
        event->position.store(Event::pending_at(stream.word, record.value), std::memory_order_release);
      }
    }
  });
}

CUresult GraphExec::as_graph(Graph*& graph) {
  const std::lock_guard lock(mutex_);
  Graphs& graphs = Graphs::instance();
  graph = graphs.create();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<Node*> made;
  for (const Entry& entry : nodes_) {
    std::vector<Edge> before;
    for (const std::uint32_t index : entry.before) before.push_back({made[index], {}});
    Node* node = nullptr;
    const WorkRef& work = entry.is_enabled ? entry.work : std::make_shared<const NodeWork>(EmptyWork{});
    if (const CUresult error = graphs.add(*graph, work, before, node); error != CUDA_SUCCESS) {
      graphs.destroy(*graph);
      return error;
    }
    made.push_back(node);
  }
  graph->user_objects = user_objects_;
  UserObjects::instance().retain_all(graph->user_objects);
  return CUDA_SUCCESS;
}

GraphExec::Entry* GraphExec::find(proto::GraphNodeId node) {
  const auto found = index_.find(node.value);
  return found != index_.end() ? &nodes_[found->second] : nullptr;
}

// The recipe of the change before this one is needed by launches between the two, until the executor has read this one.
CUresult GraphExec::post_change(std::uint32_t index, const WorkRef& work, bool is_enabled) {
  Entry& entry = nodes_[index];
  std::vector<std::byte> bytes;
  encode(*work, index, is_enabled, {}, bytes);
  const CUresult error = session().channel().post<proto::GraphSetNodesRecord>(
      {}, bytes.size(), [&](proto::GraphSetNodesRecord& record, std::byte* trailing, Place place) {
        record.exec = id_;
        std::memcpy(trailing, bytes.data(), bytes.size());
        session().end_recipe(entry.recipe, place);
        proto::GraphSetNodesRecord again = record;
        again.restores = 1;
        entry.recipe = session().recipes().add(recipe_of({}, again, place.position, bytes));
      });
  if (error != CUDA_SUCCESS) return error;
  entry.work = work;
  entry.is_enabled = is_enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::apply(std::uint32_t index, const WorkRef& work) {
  Entry& entry = nodes_[index];
  if (does<EventWaitWork>(work)) {
    entry.work = work;  // the executor knows nothing of it
    return CUDA_SUCCESS;
  }
  if (entry.work == work || encoded(*entry.work) == encoded(*work)) return CUDA_SUCCESS;
  return post_change(index, work, entry.is_enabled);
}

CUresult GraphExec::set_work(proto::GraphNodeId node, const WorkRef& work) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(node);
  if (entry == nullptr || can_become(*entry->work, *work) != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  return apply(static_cast<std::uint32_t>(entry - nodes_.data()), work);
}

CUresult GraphExec::set_enabled(proto::GraphNodeId node, bool is_enabled) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(node);
  if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!does<KernelWork>(entry->work) && !does<CopyWork>(entry->work) && !does<FillWork>(entry->work)) return CUDA_ERROR_INVALID_VALUE;
  if (entry->is_enabled == is_enabled) return CUDA_SUCCESS;
  return post_change(static_cast<std::uint32_t>(entry - nodes_.data()), entry->work, is_enabled);
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
    const bool differs = result != CU_GRAPH_EXEC_UPDATE_SUCCESS && encoded(*nodes_[i].work) != encoded(*flat[i].work);
    if (differs) return refuse(result, flat[i].source);
  }
  for (std::uint32_t i = 0; i < flat.size(); ++i) {
    if (const CUresult error = apply(i, flat[i].work); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult GraphExec::update_child(const Graph& child, const Graph& graph) {
  std::vector<FlatNode> before, after;
  if (!flatten(child, before) || !flatten(graph, after) || before.size() != after.size()) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].before != after[i].before || before[i].work->index() != after[i].work->index()) return CUDA_ERROR_INVALID_VALUE;
    if (before[i].source == proto::GraphNodeId{}) continue;
    const Entry* entry = find(before[i].source);
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool can = can_become(*entry->work, *after[i].work) == CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (!can && encoded(*entry->work) != encoded(*after[i].work)) return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].source == proto::GraphNodeId{}) continue;
    const auto index = static_cast<std::uint32_t>(find(before[i].source) - nodes_.data());
    if (const CUresult error = apply(index, after[i].work); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
