// SPDX-License-Identifier: Apache-2.0
// Events. A recorded event is a position: a stream's fence word and a value; it is complete once the word has reached the value, so a query
// is one load. Recording writes the value in the stream's order, and it doubles as the stream's fence.
//
// Any thread. An Event lives until its handle is destroyed. Values are compared in 32-bit arithmetic: an event whose stream has passed
// 2^31 further fences since, without one look at the event in between, would look pending; a look that finds it complete is remembered.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/shared_events.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct Event {
  // Never recorded, complete, or pending at (word, value): one word, so that readers need no lock.
  static constexpr std::uint64_t kNeverRecorded = 0;
  static constexpr std::uint64_t kComplete = 1;
  static constexpr std::uint64_t pending_at(std::uint32_t word, std::uint32_t value) {
    return (1ull << 63) | (static_cast<std::uint64_t>(word) << 32) | value;
  }

  proto::EventId id;
  std::uint32_t flags = 0;
  CUcontext context = nullptr;
  RecipeBook::Key recipe = 0;
  std::atomic<std::uint64_t> position{kNeverRecorded};
  std::optional<SharedEvent> shared;     // with other processes: it has no position then
  std::atomic<bool> is_captured{false};  // last recorded in a stream that captured (graphs/capture.hpp)
};

class Events {
 public:
  [[nodiscard]] static Events& instance();

  // Null if the handle is none.
  [[nodiscard]] Event* resolve(CUevent handle) { return table_.find(id_of<proto::HandleKind::event>(handle)).get(); }

  // `shared`: what it shares with other processes.
  [[nodiscard]] CUresult create(std::uint32_t flags, CUcontext context, Event*& event, std::optional<SharedEvent> shared = std::nullopt);
  // CUDA_ERROR_INVALID_HANDLE: there is none, or another thread was faster.
  [[nodiscard]] CUresult destroy(proto::EventId id);
  [[nodiscard]] CUresult record(Event& event, Stream& stream, std::uint32_t flags);
  // Of an event that no capture knows, in a stream that does not capture. Takes no mutex of theirs.
  [[nodiscard]] static CUresult post_record(Event& event, Stream& stream);
  [[nodiscard]] CUresult wait_on_stream(Event& event, Stream& stream, std::uint32_t flags);
  [[nodiscard]] CUresult synchronize(Event& event);
  // CUDA_ERROR_NOT_READY while pending; an event never recorded is complete.
  [[nodiscard]] CUresult query(Event& event);
  [[nodiscard]] CUresult elapsed(Event& start, Event& end, float* milliseconds);
  void destroy_all_of(CUcontext context);
  // What it was recorded behind last has ended; so has nothing, if it never was. Not of one that is shared, or captured.
  [[nodiscard]] static bool is_complete(Event& event) { return is_complete(event, event.position.load(std::memory_order_acquire), false); }
  // The same for queries: not later than the program can know it otherwise (SessionClient::has_ended).
  [[nodiscard]] static bool has_ended(Event& event) { return is_complete(event, event.position.load(std::memory_order_acquire), true); }

 private:
  // Whether the event is complete that was recorded at `position`; another thread may have recorded it anew since.
  [[nodiscard]] static bool is_complete(Event& event, std::uint64_t position, bool asks);

  proto::HandleTable<proto::HandleKind::event, Event> table_{ActingSession::index()};
  Mutex ending_mutex_;  // one event ends at a time
  Mutex mutex_;         // held while entries come and go, so that destroy_all_of may walk
};

}  // namespace mpsshim::interposer::forward
