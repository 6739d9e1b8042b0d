// SPDX-License-Identifier: Apache-2.0
// Green contexts of this process (CUDA Driver API manual, "Green Contexts"). One is a share of the device's multiprocessors; its streams, made
// for it or while it is current, are on them, in the executor's driver too. It has a NULL stream of its own, made when first used. Everything
// else (memory, modules, events) is the primary context's, whichever of the two is current.
//
// A context that cuCtxCreate_v3 has made with a number of multiprocessors has a part of them (context_parts.cpp), which is one too, and is told to
// nobody: the context has memory, modules and events of its own, its NULL stream is ordered with blocking streams, and the part ends with it.
//
// As a CUcontext it has a handle of another kind than as a CUgreenCtx; both name it from the start. Any thread may call; CUDA forbids using one
// while another thread destroys it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"
#include "proto/resource_share.hpp"

namespace mpsshim::interposer::forward {

// A resource and what the driver tells of it, as the CUdevResource that an application holds has them in its own form (resources.cpp).
struct Resource {
  proto::ResourceShare share;
  proto::ResourceTold told;
};

struct Event;

struct GreenObject {
  proto::GreenContextId id;
  CUdevice device = 0;
  CUcontext context = nullptr;  // its handle as one
  std::uint64_t unique_id = 0;  // of both handles
  proto::ResourceTold told;     // of what it has
  RecipeBook::Key recipe = 0;
  std::vector<std::uint32_t> cut;  // a context's part: which of the parts that the device is cut into
  Mutex mutex;  // the streams are made under it
  std::atomic<Stream*> null_stream{nullptr};
  // Streams of the library's own that stand for it, as context_events.cpp has them for the session.
  Stream* behind_all = nullptr;
  Stream* before_all = nullptr;

  [[nodiscard]] bool is_part() const { return !cut.empty(); }
};

class GreenContexts {
 public:
  [[nodiscard]] static GreenContexts& instance();
  // Whether there ever was one: what every call that means the NULL stream looks at first.
  [[nodiscard]] static bool any() { return any_.load(std::memory_order_relaxed); }

  // Null if the handle is none.
  [[nodiscard]] GreenObject* resolve(CUgreenCtx handle) { return table_.find(id_of<proto::HandleKind::green_context>(handle)).get(); }
  // Null if the context is no green one; the second one for the calling thread's current context.
  [[nodiscard]] GreenObject* of_context(CUcontext context);
  [[nodiscard]] GreenObject* current() { return any() ? of_context(current_context()) : nullptr; }
  // The same, or the part that a context was made for: whose multiprocessors work in it has. Null: all of them.
  [[nodiscard]] GreenObject* place_of(CUcontext context);
  [[nodiscard]] GreenObject* current_place() { return any() ? place_of(current_context()) : nullptr; }
  // {} if it is a context's part, which programs know nothing of.
  [[nodiscard]] proto::GreenContextId told_of(proto::GreenContextId green);

  [[nodiscard]] CUresult create(std::span<const proto::ResourceShare> shares, CUdevice device, GreenObject*& green);
  // So many multiprocessors or some more, where the fewest contexts of this process lie; null: it has no more than that.
  [[nodiscard]] CUresult create_part(CUdevice device, unsigned multiprocessors, GreenObject*& part);
  // Of that context, which is about to end: its NULL stream does.
  void forget_null_stream(proto::GreenContextId part);
  // Its streams end with it; their handles are known as orphans' from then on.
  [[nodiscard]] CUresult destroy(proto::GreenContextId id);
  // The primary context ends. Parts of others stay.
  void destroy_all();

  // Null if it could not be made.
  [[nodiscard]] Stream* null_stream(GreenObject& green);
  // A stream that NULL streams are ordered with captures, or none does.
  void guard_null_streams(bool is_captured);

  // Events of all its streams.
  [[nodiscard]] CUresult record(GreenObject& green, Event& event);
  [[nodiscard]] CUresult wait(GreenObject& green, Event& event);

 private:
  [[nodiscard]] CUresult make(std::span<const proto::ResourceShare> shares, GreenObject& green);
  [[nodiscard]] std::vector<std::uint32_t> choose(std::size_t parts, std::size_t wanted) REQUIRES(mutex_);
  [[nodiscard]] CUresult join(GreenObject& green, Stream& stream, bool waits, bool precedes);
  [[nodiscard]] static CUresult helper_stream(GreenObject& green, Stream*& stream);

  static std::atomic<bool> any_;
  proto::HandleTable<proto::HandleKind::green_context, GreenObject> table_{ActingSession::index()};
  Mutex ending_mutex_;  // one of them ends at a time
  Mutex mutex_;         // held while entries come and go
  std::vector<unsigned> uses_ GUARDED_BY(mutex_);  // of each part that the device is cut into: contexts that have it
};

// --- resources.cpp ---
// CUDA_ERROR_INVALID_RESOURCE_TYPE: it is none of multiprocessors, or none that a call of this library has filled.
[[nodiscard]] CUresult read_resource(const CUdevResource& resource, Resource& read);
[[nodiscard]] CUdevResource written_resource(const Resource& resource);
[[nodiscard]] CUresult device_resource(CUdevice device, Resource& resource);
// Number of multiprocessors.
[[nodiscard]] std::uint32_t multiprocessors_of(const proto::ResourceTold& told);

}  // namespace mpsshim::interposer::forward
