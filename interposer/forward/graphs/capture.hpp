// SPDX-License-Identifier: Apache-2.0
// Stream capture (CUDA Driver API manual, "Stream Management"; CUDA Programming Guide, "Creating a Graph Using Stream Capture"): calls that name
// a capturing stream become nodes of a graph. All of it is this process's own bookkeeping; the executor's streams never capture, so one
// client's capture is nothing to another.
//
// A capture begins in its origin and spreads to streams that wait for its events. What it cannot have invalidates it: from then on its streams
// and events answer with errors until the origin's cuStreamEndCapture. Everything else goes by Stream::is_captured and Event::is_captured,
// one look where work is posted; the NULL stream has it set while a stream captures that it is ordered with, since it may not be used then.
// Any thread; guarded by the graphs' mutex, which the functions below take.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/graph.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

class Captures {
 public:
  [[nodiscard]] static Captures& instance();

  // `into`: nodes are added to that graph, the first behind `before`; null: to a new one.
  [[nodiscard]] CUresult begin(Stream& stream, CUstreamCaptureMode mode, CUgraph into, std::span<const CUgraphNode> before,
                               const CUgraphEdgeData* edges);
  [[nodiscard]] CUresult end(Stream& stream, CUgraph* graph);

  struct Info {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    std::uint64_t id = 0;
    CUgraph graph = nullptr;
    // What the next call is to depend on. Valid until then.
    std::span<const CUgraphNode> before;
    std::span<const CUgraphEdgeData> edges;
  };
  [[nodiscard]] CUresult info(Stream& stream, Info& info);
  [[nodiscard]] CUresult set_dependencies(Stream& stream, std::span<const CUgraphNode> nodes, const CUgraphEdgeData* edges, bool replaces);
  // The calling thread's mode; returns what it was.
  [[nodiscard]] static CUstreamCaptureMode exchange_mode(CUstreamCaptureMode mode);

  // --- calls that meet a stream or an event with is_captured ---
  [[nodiscard]] CUresult add(Stream& stream, WorkRef work);
  // cuMemAllocAsync and cuMemFreeAsync.
  [[nodiscard]] CUresult allocate(Stream& stream, const CUDA_MEM_ALLOC_NODE_PARAMS& params, std::uint64_t& address);
  [[nodiscard]] CUresult free(Stream& stream, std::uint64_t address);
  [[nodiscard]] CUresult record(Event& event, Stream& stream, bool is_external);
  [[nodiscard]] CUresult wait(Event& event, Stream& stream, bool is_external);
  // Something that cannot be captured: the error, and the end of what the stream's or the event's capture was good for.
  [[nodiscard]] CUresult refuse(Stream& stream);
  [[nodiscard]] CUresult refuse(Event& event);
  // They go away.
  void forget(Stream& stream);
  void forget(Event& event);

  // A call that CUDA calls potentially unsafe while something captures, such as cuMemAlloc, or one that waits for all of a context.
  [[nodiscard]] CUresult check_unsafe_call() { return count_.load(std::memory_order_relaxed) == 0 ? CUDA_SUCCESS : refuse_unsafe_call(); }
  [[nodiscard]] CUresult check_wait_for_all() { return count_.load(std::memory_order_relaxed) == 0 ? CUDA_SUCCESS : refuse_wait_for_all(); }
  // The same for a call that waits for all of a green context.
  [[nodiscard]] CUresult check_wait_for_all(proto::GreenContextId green) {
    return count_.load(std::memory_order_relaxed) == 0 ? CUDA_SUCCESS : refuse_wait_for_green(green);
  }

 private:
  // What comes next depends on these.
  struct Place {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraphEdgeData> edges;
    void add(CUgraphNode node, const CUgraphEdgeData& edge);
  };
  struct Capture {
    std::uint64_t id = 0;
    proto::GraphId graph;
    bool owns_graph = true;
    CUstreamCaptureMode mode{};
    std::thread::id thread;
    Stream* origin = nullptr;
    std::vector<Stream*> streams;
    std::vector<Place> left;  // where streams stood that were destroyed since: to be joined like the others
    bool is_invalid = false;
    bool is_over = false;
  };
  using CaptureRef = std::shared_ptr<Capture>;
  struct Member {  // a stream of a capture, or an event recorded in one
    CaptureRef capture;
    Place place;
  };

  [[nodiscard]] CUresult refuse_unsafe_call();
  [[nodiscard]] CUresult refuse_wait_for_all();
  [[nodiscard]] CUresult refuse_wait_for_green(proto::GreenContextId green);
  [[nodiscard]] CUresult refuse_locked(Stream& stream);
  [[nodiscard]] CUresult refuse_null_stream();
  // The stream's capture if it is good; else the error.
  [[nodiscard]] CUresult find(Stream& stream, Member*& member);
  [[nodiscard]] CUresult add_locked(Member& member, WorkRef work);
  // add(Graph&, before, Node*&) adds a node, which the capture goes on behind.
  template <typename Add>
  [[nodiscard]] CUresult add_node(Member& member, Add&& add);
  [[nodiscard]] std::vector<Edge> edges_of(const Place& place) const;
  [[nodiscard]] bool is_joined(const Capture& capture);
  void join(Stream& stream, const CaptureRef& capture, Place place);
  void leave(Stream& stream);
  void close(const CaptureRef& capture);
  void guard_null_stream();

  Graphs& graphs_ = Graphs::instance();
  std::atomic<unsigned> count_{0};  // captures that have begun and not ended
  std::uint64_t last_id_ = 0;
  std::vector<CaptureRef> captures_;
  std::unordered_map<Stream*, Member> streams_;
  std::unordered_map<Event*, Member> events_;
};

}  // namespace mpsshim::interposer::forward
