// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/host_segments.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "broker/control/base/complaints.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"
#include "proto/shared_events.hpp"

namespace mpsshim::broker::control {

// `make` puts the segment of that id into the session's store.
template <typename Make>
CUresult HostSegments::add(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t more_bytes, std::uint64_t& segment, int& file,
                           Make&& make) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  std::string lack;
  const char* why = nullptr;
  segment = next_segment_++;
  CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
  if (holdings_.may_hold(session, more_bytes, lack)) {
    status = make(why);
  } else {
    why = lack.c_str();
  }
  if (status != CUDA_SUCCESS) {
    complain("{}: segment of {} bytes at {:#x} refused: {}.", session.name(), request.size_bytes, request.address, why);
    return status;
  }
  file = session.segments.find(segment)->file.get();
  session.executor->send(
      {message::SegmentAdd{
           .session = session.id, .segment = segment, .address = request.address, .size_bytes = request.size_bytes, .purpose = request.purpose,
           .is_peers = session.segments.find(segment)->is_peers ? 1u : 0u},
       {.file = file}});
  return CUDA_SUCCESS;
}

CUresult HostSegments::create(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file) {
  return add(session, request, request.size_bytes, segment, file,
             [&](const char*& why) { return session.segments.create(segment, request, session.pinned_lease, why); });
}

CUresult HostSegments::open(ClientSession& session, const proto::SegmentOpen& request, std::uint64_t& segment, int& file) {
  const std::optional<ShareTable::Shared> shared = shares_.find(request.name);
  const ClientSession* const owner = shared ? sessions_.find(shared->session) : nullptr;
  const Segment* events = owner != nullptr ? owner->segments.find(shared->object) : nullptr;
  if (events == nullptr || events->purpose != proto::SegmentPurpose::events || events->size_bytes != request.size_bytes) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (owner == &session) return CUDA_ERROR_INVALID_CONTEXT;
  if (owner->client.uid != session.client.uid) {
    complain("{}: events of {} are another user's; they are not opened.", session.name(), owner->name());
    return CUDA_ERROR_INVALID_HANDLE;
  }
  proto::SegmentCreate as_own;
  as_own.purpose = events->purpose;
  as_own.size_bytes = request.size_bytes;
  as_own.address = request.address;
  return add(session, as_own, as_own.size_bytes, segment, file,
             [&](const char*& why) { return session.segments.open(segment, as_own, *events, session.pinned_lease, false, why); });
}

// What is pinned is the owner's, and so is the memory that it takes.
CUresult HostSegments::open_peers(ClientSession& session, const proto::PeerSegment& request, std::uint64_t& segment, int& file) {
  for (const auto& entry : sessions_.all()) {
    const ClientSession& owner = entry.second;
    const bool is_another = owner.id != session.id && owner.device != session.device && owner.phase != SessionPhase::closing;
    if (!is_another || !is_one_process(session.client, owner.client)) continue;
    const auto found = std::ranges::find_if(owner.segments.all(), [&](const auto& held) {
      const Segment& one = held.second;
      return one.purpose == proto::SegmentPurpose::pinned && !one.is_peers && one.address == request.address;
    });
    if (found == owner.segments.all().end()) continue;
    proto::SegmentCreate as_there;
    as_there.purpose = proto::SegmentPurpose::pinned;
    as_there.size_bytes = found->second.size_bytes;
    as_there.address = request.address;
    if (!ranges_.hold_pinned_of(session, owner)) return CUDA_ERROR_OUT_OF_MEMORY;
    return add(session, as_there, 0, segment, file,
               [&](const char*& why) { return session.segments.open(segment, as_there, found->second, owner.pinned_lease, true, why); });
  }
  complain("{}: asks for pinned memory at {:#x}, which is not another session's of its process; it does not get it.", session.name(),
           request.address);
  return CUDA_ERROR_INVALID_VALUE;
}

// Clients write into these segments as they like; here it is words.
void abandon_events(const ClientSession& session) {
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

}  // namespace mpsshim::broker::control
