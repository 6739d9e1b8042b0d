// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/capture.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "interposer/forward/graphs/memory_nodes.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

Captures& Captures::instance() {
  return PerSession<Captures>::get([] { return new Captures(); });
}

void Captures::Place::add(CUgraphNode node, const CUgraphEdgeData& edge) {
  if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return;
  nodes.push_back(node);
  edges.push_back(edge);
}

// Nodes that have been destroyed since are left out.
std::vector<Edge> Captures::edges_of(const Place& place) const {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < place.nodes.size(); ++i) {
    if (Node* node = graphs_.resolve(place.nodes[i])) edges.push_back({node, place.edges[i]});
  }
  return edges;
}

CUresult Captures::begin(Stream& stream, CUstreamCaptureMode mode, CUgraph into, std::span<const CUgraphNode> before, const CUgraphEdgeData* edges) {
  if (stream.is_null_stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard lock(graphs_.mutex());
  if (stream.is_captured.load(std::memory_order_relaxed)) return CUDA_ERROR_ILLEGAL_STATE;
  Graph* graph = into != nullptr ? graphs_.resolve(into) : graphs_.create();
  if (graph == nullptr) return into != nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  if (graph->is_captured_into) return CUDA_ERROR_ILLEGAL_STATE;
  Place place;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Node* node = graphs_.resolve(before[i]);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    place.add(before[i], edges != nullptr ? edges[i] : CUgraphEdgeData{});
  }
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->graph = graph->id;
  capture->owns_graph = into == nullptr;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  graph->is_captured_into = true;
  captures_.push_back(capture);
  count_.store(static_cast<unsigned>(captures_.size()), std::memory_order_relaxed);
  join(stream, capture, std::move(place));
  return CUDA_SUCCESS;
}

void Captures::join(Stream& stream, const CaptureRef& capture, Place place) {
  capture->streams.push_back(&stream);
  streams_[&stream] = Member{capture, std::move(place)};
  stream.is_captured.store(true, std::memory_order_relaxed);
  guard_null_stream();
}

void Captures::leave(Stream& stream) {
  streams_.erase(&stream);
  stream.is_captured.store(false, std::memory_order_relaxed);
}

void Captures::guard_null_stream() {
  Stream* const null_stream = Streams::instance().legacy_default();
  if (null_stream == nullptr) return;
  const bool is_ordered = std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.first->is_blocking; });
  null_stream->is_captured.store(is_ordered, std::memory_order_relaxed);
  if (GreenContexts::any()) GreenContexts::instance().guard_null_streams(is_ordered);
}

CUresult Captures::end(Stream& stream, CUgraph* result) {
  const std::lock_guard lock(graphs_.mutex());
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return CUDA_ERROR_ILLEGAL_STATE;
  const CaptureRef capture = found->second.capture;
  if (capture->origin != &stream) {
    capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (result == nullptr && capture->owns_graph) return CUDA_ERROR_INVALID_VALUE;  // who named the graph has it already
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  Graph* graph = graphs_.resolve(to_handle<CUgraph>(capture->graph));
  CUresult error = capture->is_invalid || graph == nullptr ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (error == CUDA_SUCCESS && !is_joined(*capture)) error = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  close(capture);
  if (error != CUDA_SUCCESS && capture->owns_graph && graph != nullptr) graphs_.destroy(*graph);
  if (result != nullptr) *result = error == CUDA_SUCCESS ? to_handle<CUgraph>(capture->graph) : nullptr;
  return error;
}

// Whether everything that other streams of the capture have last is something the origin's last depends on.
bool Captures::is_joined(const Capture& capture) {
  std::unordered_set<const Node*> reached;
  std::vector<const Node*> open;
  const auto reach = [&](const Node* node) {
    if (reached.insert(node).second) open.push_back(node);
  };
  for (const Edge& edge : edges_of(streams_[capture.origin].place)) reach(edge.node);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Edge& edge : node->before) reach(edge.node);
  }
  const auto is_reached = [&](const Place& place) {
    const std::vector<Edge> edges = edges_of(place);
    return std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) { return reached.count(edge.node) != 0; });
  };
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](Stream* stream) { return is_reached(streams_[stream].place); }) &&
         std::all_of(capture.left.begin(), capture.left.end(), is_reached);
}

void Captures::close(const CaptureRef& capture) {
  capture->is_over = true;
  for (Stream* stream : capture->streams) leave(*stream);
  capture->streams.clear();
  if (Graph* graph = graphs_.resolve(to_handle<CUgraph>(capture->graph))) graph->is_captured_into = false;
  std::erase(captures_, capture);
  count_.store(static_cast<unsigned>(captures_.size()), std::memory_order_relaxed);
  guard_null_stream();
}

CUresult Captures::info(Stream& stream, Info& info) {
  info = {};
  if (!stream.is_captured.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const std::lock_guard lock(graphs_.mutex());
  const auto found = streams_.find(&stream);
  // The NULL stream does not capture and cannot be used either; the captures go on.
  if (found == streams_.end()) return stream.is_captured.load(std::memory_order_relaxed) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  const Member& member = found->second;
  info.id = member.capture->id;
  if (member.capture->is_invalid) {
    info.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  info.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  info.graph = to_handle<CUgraph>(member.capture->graph);
  info.before = member.place.nodes;
  info.edges = member.place.edges;
  return CUDA_SUCCESS;
}

CUresult Captures::set_dependencies(Stream& stream, std::span<const CUgraphNode> nodes, const CUgraphEdgeData* edges, bool replaces) {
  const std::lock_guard lock(graphs_.mutex());
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return CUDA_ERROR_ILLEGAL_STATE;
  Member& member = found->second;
  if (member.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (const CUgraphNode handle : nodes) {
    const Node* node = graphs_.resolve(handle);
    if (node == nullptr || node->graph->id != member.capture->graph) return CUDA_ERROR_INVALID_VALUE;
  }
  if (replaces) member.place = {};
  for (std::size_t i = 0; i < nodes.size(); ++i) member.place.add(nodes[i], edges != nullptr ? edges[i] : CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

CUresult Captures::find(Stream& stream, Member*& member) {
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return refuse_null_stream();
  if (found->second.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  member = &found->second;
  return CUDA_SUCCESS;
}

CUresult Captures::add(Stream& stream, WorkRef work) {
  const std::lock_guard lock(graphs_.mutex());
  Member* member = nullptr;
  if (const CUresult error = find(stream, member); error != CUDA_SUCCESS) return error;
  return add_locked(*member, std::move(work));
}

template <typename Add>
CUresult Captures::add_node(Member& member, Add&& add) {
  Graph* graph = graphs_.resolve(to_handle<CUgraph>(member.capture->graph));
  if (graph == nullptr) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Node* node = nullptr;
  const CUresult error = add(*graph, edges_of(member.place), node);
  if (error == kNeedsBlock) return error;
  if (error != CUDA_SUCCESS) {
    member.capture->is_invalid = true;
    return error;
  }
  member.place = {};
  member.place.add(to_handle<CUgraphNode>(node->id), {});
  return CUDA_SUCCESS;
}

CUresult Captures::add_locked(Member& member, WorkRef work) {
  return add_node(member,
                  [&](Graph& graph, const std::vector<Edge>& before, Node*& node) { return graphs_.add(graph, std::move(work), before, node); });
}

CUresult Captures::allocate(Stream& stream, const CUDA_MEM_ALLOC_NODE_PARAMS& params, std::uint64_t& address) {
  return with_new_block(params.bytesize, [&](const BlockRef& spare) {
    const std::lock_guard lock(graphs_.mutex());
    Member* member = nullptr;
    if (const CUresult error = find(stream, member); error != CUDA_SUCCESS) return error;
    return add_node(*member, [&](Graph& graph, const std::vector<Edge>& before, Node*& node) {
      return add_allocation(graph, before, params, spare, node, address);
    });
  });
}

CUresult Captures::free(Stream& stream, std::uint64_t address) {
  const std::lock_guard lock(graphs_.mutex());
  Member* member = nullptr;
  if (const CUresult error = find(stream, member); error != CUDA_SUCCESS) return error;
  return add_node(*member, [&](Graph& graph, const std::vector<Edge>& before, Node*& node) { return add_free(graph, before, address, node); });
}

CUresult Captures::record(Event& event, Stream& stream, bool is_external) {
  const std::lock_guard lock(graphs_.mutex());
  Member* member = nullptr;
  if (const CUresult error = find(stream, member); error != CUDA_SUCCESS) return error;
  if (is_external) {
    return add_locked(*member, std::make_shared<const NodeWork>(EventRecordWork{to_handle<CUevent>(event.id)}));
  }
  events_[&event] = *member;
  event.is_captured.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult Captures::wait(Event& event, Stream& stream, bool is_external) {
  const std::lock_guard lock(graphs_.mutex());
  const auto own = streams_.find(&stream);
  const bool captures = own != streams_.end();
  if (captures && own->second.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (captures && is_external) {
    return add_locked(own->second, std::make_shared<const NodeWork>(EventWaitWork{to_handle<CUevent>(event.id)}));
  }
  const auto recorded = event.is_captured.load(std::memory_order_relaxed) ? events_.find(&event) : events_.end();
  if (recorded == events_.end() || recorded->second.capture->is_over) {
    if (!captures) return recorded == events_.end() ? refuse_null_stream() : CUDA_ERROR_CAPTURED_EVENT;
    own->second.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const Member& from = recorded->second;
  if (from.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.is_null_stream) {
    from.capture->is_invalid = true;
    return stream.is_captured.load(std::memory_order_relaxed) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!captures) {
    join(stream, from.capture, from.place);
    return CUDA_SUCCESS;
  }
  if (own->second.capture != from.capture) {
    own->second.capture->is_invalid = from.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (std::size_t i = 0; i < from.place.nodes.size(); ++i) own->second.place.add(from.place.nodes[i], from.place.edges[i]);
  return CUDA_SUCCESS;
}

void Captures::forget(Stream& stream) {
  if (!stream.is_captured.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(graphs_.mutex());
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return;
  const CaptureRef capture = found->second.capture;
  if (capture->origin != &stream) capture->left.push_back(std::move(found->second.place));  // what it has captured stays
  std::erase(capture->streams, &stream);
  leave(stream);
  if (capture->origin != &stream) return guard_null_stream();
  capture->is_invalid = true;
  Graph* graph = graphs_.resolve(to_handle<CUgraph>(capture->graph));  // nobody can end it any more
  close(capture);
  if (capture->owns_graph && graph != nullptr) graphs_.destroy(*graph);
}

void Captures::forget(Event& event) {
  if (!event.is_captured.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(graphs_.mutex());
  events_.erase(&event);
  event.is_captured.store(false, std::memory_order_relaxed);
}

// What a stream would have got: the slow half of post_work().
CUresult capture_post(Stream& stream, proto::RecordId id, std::span<const std::byte> body, std::span<const std::byte> trailing) {
  Captures& captures = Captures::instance();
  WorkRef work;
  if (id == proto::RecordId::Launch) {
    proto::LaunchRecord record;
    std::memcpy(&record, body.data(), sizeof record);
    if (const CUresult error = make_kernel_work(stream, record, trailing, work); error != CUDA_SUCCESS) return error;
    return captures.add(stream, std::move(work));
  }
  if (id == proto::RecordId::Fill) {
    proto::FillRecord record;
    std::memcpy(&record, body.data(), sizeof record);
    return captures.add(stream, make_fill_work(record));
  }
  return captures.refuse(stream);
}

CUresult synchronize_context(CUcontext context) {
  const GreenObject* green = GreenContexts::instance().of_context(context);
  if (green == nullptr) {
    if (const CUresult error = Captures::instance().check_wait_for_all(); error != CUDA_SUCCESS) return error;
    return synchronize_all_streams();
  }
  if (const CUresult error = Captures::instance().check_wait_for_all(green->id); error != CUDA_SUCCESS) return error;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  return Streams::instance().synchronize_all_of(green->id);
}

}  // namespace mpsshim::interposer::forward
