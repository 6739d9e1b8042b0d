// SPDX-License-Identifier: Apache-2.0
// Segments of host memory that clients ask for: made for them, or opened as another session's.
#include "broker/control/base/complaints.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "broker/control/sessions/session_manager.hpp"

namespace mpsshim::broker::control {

// `make` puts the segment of that id into the session's store.
template <typename Make>
CUresult SessionManager::add_segment(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file, Make&& make) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  std::string lack;
  const char* why = nullptr;
  segment = next_segment_++;
  CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
  if (may_hold(session, request.size_bytes, lack)) {
    status = make(why);
  } else {
    why = lack.c_str();
  }
  if (status != CUDA_SUCCESS) {
    complain("{}: segment of {} bytes at {:#x} refused: {}.", session.name(), request.size_bytes, request.address, why);
    return status;
  }
  file = session.segments.find(segment)->file.get();
  session.executor->send({message::SegmentAdd{.session = session.id,
                                              .segment = segment,
                                              .address = request.address,
                                              .size_bytes = request.size_bytes,
                                              .purpose = request.purpose},
                          {.file = file}});
  return CUDA_SUCCESS;
}

CUresult SessionManager::create_segment(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file) {
  return add_segment(session, request, segment, file,
                     [&](const char*& why) { return session.segments.create(segment, request, session.pinned_lease, why); });
}

CUresult SessionManager::open_segment(ClientSession& session, const proto::SegmentOpen& request, std::uint64_t& segment, int& file) {
  const std::optional<ShareTable::Shared> shared = shares_.find(request.name);
  const ClientSession* owner = shared ? find(shared->session) : nullptr;
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
  return add_segment(session, as_own, segment, file,
                     [&](const char*& why) { return session.segments.open(segment, as_own, *events, session.pinned_lease, why); });
}

}  // namespace mpsshim::broker::control
