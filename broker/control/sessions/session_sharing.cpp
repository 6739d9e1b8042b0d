// SPDX-License-Identifier: Apache-2.0
// Memory that one session lets another have.
#include <span>

#include "broker/control/base/complaints.hpp"
#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"
#include "proto/ids.hpp"
#include "proto/shared_events.hpp"

namespace mpsshim::broker::control {

std::optional<proto::MemoryName> SessionManager::share_memory(const ClientSession& session, std::uint64_t object) {
  const Segment* segment = session.segments.find(object);
  const bool holds_events = segment != nullptr && segment->purpose == proto::SegmentPurpose::events;
  if (!holds_events && !session.chunks.all().contains(object)) return std::nullopt;
  return shares_.name({session.id, object});
}

CUresult SessionManager::open_memory(ClientSession& session, const proto::MemoryOpen& request, std::uint64_t& size_bytes, bool& is_own) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  const bool is_id = proto::MemoryId{request.memory}.has_kind() || proto::ExternalMemoryId{request.memory}.has_kind();
  if (!is_id || session.chunks.all().contains(request.memory)) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<ShareTable::Shared> shared = shares_.find(request.name);
  const ClientSession* owner = shared ? find(shared->session) : nullptr;
  const auto chunk = owner != nullptr ? owner->chunks.all().find(shared->object) : decltype(owner->chunks.all().end()){};
  if (owner == nullptr || chunk == owner->chunks.all().end()) return CUDA_ERROR_INVALID_VALUE;
  if (owner->client.uid != session.client.uid) {
    complain("{}: memory of {} is another user's; it is not opened.", session.name(), owner->name());
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (owner->device != session.device) return CUDA_ERROR_NOT_SUPPORTED;
  if (session.announced.size() >= ClientSession::kMostAnnounced) return CUDA_ERROR_OUT_OF_MEMORY;
  session.announced.emplace(request.memory, chunk->second.charge);
  size_bytes = chunk->second.size_bytes;
  is_own = owner == &session;
  session.executor->send(
      {message::PieceAdd{.session = session.id, .memory = request.memory, .piece = ++last_piece_, .size_bytes = size_bytes},
       {.handle = chunk->second.handle.get()}});
  return CUDA_SUCCESS;
}

// Nothing of the session runs any more: what it has recorded and not completed will not be. Clients write into these segments as they like;
// here it is words.
void SessionManager::abandon_events(const ClientSession& session) {
  for (const auto& [id, segment] : session.segments.all()) {
    if (segment.purpose != proto::SegmentPurpose::events) continue;
    const proto::Mapping mapping = proto::Mapping::map(segment.file, 0, proto::kSharedEventBytes, proto::Access::read_write);
    if (!mapping) {
      log_warning("{}: a segment of its events cannot be mapped; who waits for one of them waits until its own end. Free memory.", session.name());
      continue;
    }
    for (proto::SharedEventSlot& slot : std::span(reinterpret_cast<proto::SharedEventSlot*>(mapping.data()), proto::kSharedEventSlots)) {
      const std::uint32_t last = slot.recorded.load(std::memory_order_acquire);
      for (std::uint32_t back = 0; back < proto::SharedEventSlot::kRecords; ++back) {
        const std::uint32_t number = last - back;
        const std::uint32_t at = number % proto::SharedEventSlot::kRecords;
        if (slot.recorder[at].load(std::memory_order_relaxed) != session.id || proto::is_reached(slot.completed[at].load(), number)) continue;
        slot.abandoned[at].store(number, std::memory_order_relaxed);
        slot.completed[at].store(number, std::memory_order_release);  // pairs with SharedEvents::is_complete
      }
    }
  }
}

void SessionManager::chunk_released(ClientSession& session, std::uint64_t object) {
  shares_.forget({session.id, object});
  session.chunks.release(object);
}

}  // namespace mpsshim::broker::control
