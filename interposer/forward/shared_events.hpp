// SPDX-License-Identifier: Apache-2.0
// Events that processes share (CU_EVENT_INTERPROCESS; CUDA Driver API manual, "cuIpcGetEventHandle"): words in memory that all of them map
// (proto/shared_events.hpp), written and waited for by stream memory operations. The maker's slots lie in pages of its own, which it names;
// who opens a handle maps the page. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/streams.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"
#include "proto/shared_events.hpp"

namespace mpsshim::interposer::forward {

// What an Event has of it.
struct SharedEvent {
  proto::SharedEventSlot* slot = nullptr;
  std::uint32_t generation = 0;
  bool is_own = false;
};

class SharedEvents {
 public:
  [[nodiscard]] static SharedEvents& instance();

  [[nodiscard]] CUresult create(SharedEvent& event);
  [[nodiscard]] CUresult open(const CUipcEventHandle& handle, SharedEvent& event);
  // For other processes, of an own event; for other sessions of this process, of any.
  [[nodiscard]] CUresult name(const SharedEvent& event, CUipcEventHandle& handle);
  void destroy(const SharedEvent& event);

  // CUDA_ERROR_INVALID_HANDLE, of all of these: its maker has destroyed it.
  [[nodiscard]] static CUresult record(const SharedEvent& event, Stream& stream);
  // What a wait makes of a record whose session has ended before it was complete.
  enum class Abandoned : std::uint8_t { goes_on, holds };
  [[nodiscard]] static CUresult wait_on_stream(const SharedEvent& event, Stream& stream, Abandoned abandoned = Abandoned::goes_on);
  // A record would be posted at once, without a wait for an earlier one.
  [[nodiscard]] static bool has_room(const SharedEvent& event);
  // The last record is complete, and was not abandoned.
  [[nodiscard]] static bool has_reached_last(const SharedEvent& event);
  // CUDA_ERROR_MPS_CLIENT_TERMINATED: whoever recorded it has ended before that was complete.
  [[nodiscard]] static CUresult synchronize(const SharedEvent& event, bool sleeps);
  [[nodiscard]] static CUresult query(const SharedEvent& event);

 private:
  struct Page {
    proto::SharedEventSlot* slots = nullptr;
    std::uint64_t segment = 0;
    proto::MemoryName name;
    bool is_own = false;
    bool is_named = false;
    unsigned users = 0;
    std::vector<std::uint32_t> free;  // own: not in use; records may still be under way there
  };
  struct Content {  // of a handle
    std::uint64_t magic = 0;
    proto::MemoryName page;
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    std::uint64_t reserved[4] = {};
  };
  static_assert(sizeof(Content) == sizeof(CUipcEventHandle));

  [[nodiscard]] CUresult add_page(const proto::MemoryName* opens, Page*& page) REQUIRES(mutex_);
  [[nodiscard]] Page* page_of(const proto::SharedEventSlot* slot) REQUIRES(mutex_);

  Mutex mutex_;
  std::list<Page> pages_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::interposer::forward
