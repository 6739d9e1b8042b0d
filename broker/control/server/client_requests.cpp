// SPDX-License-Identifier: Apache-2.0
// What a client may ask for once it has a session: images, segments, memory of others, leases, text of its kernels.
#include "broker/control/server/client_connection.hpp"

#include "broker/control/base/complaints.hpp"
#include "broker/control/sessions/session_output.hpp"

namespace mpsshim::broker::control {

// The session, if there is one that memory and images can be given to; else why not.
ClientSession* ClientConnection::live_session(CUresult& status) {
  ClientSession* session = manager_.find(session_);
  status = CUDA_ERROR_INVALID_CONTEXT;
  if (session == nullptr) return nullptr;
  status = session->lost_error;
  return status == CUDA_SUCCESS ? session : nullptr;
}

void ClientConnection::on(const proto::ImageOpen& request) {
  open_image(request.size_bytes, [&](std::uint64_t session, std::uint64_t& image, int& file) {
    return manager_.images().open(session, request.size_bytes, image, file, manager_.limits().house_of(client_.uid));
  });
}

void ClientConnection::on(const proto::ImageOffer& request) {
  open_image(request.size_bytes, [&](std::uint64_t session, std::uint64_t& image, int& file) {
    return manager_.images().offer(session, request.size_bytes, request.digest, image, file, manager_.limits().house_of(client_.uid));
  });
}

template <typename Open>
void ClientConnection::open_image(std::uint64_t size_bytes, Open&& open) {
  proto::ImageOpened message;
  CUresult status = CUDA_SUCCESS;
  const ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  int file = -1;
  std::string why;
  status = manager_.may_hold(*session, size_bytes, why) ? open(session->id, message.image, file) : CUDA_ERROR_OUT_OF_MEMORY;
  if (status != CUDA_SUCCESS) {
    complain("{}: image of {} bytes refused with CUDA error {}{}{}.", session->name(), size_bytes, static_cast<int>(status), why.empty() ? "" : ": ",
             why);
  }
  answer(message, status, {.file = file});
}

void ClientConnection::on(const proto::ImageSeal& request) {
  CUresult status = CUDA_SUCCESS;
  const ClientSession* session = live_session(status);
  if (session == nullptr) return answer(proto::Done{}, status);
  set_busy(true);
  manager_.images().seal(session->id, request.image, [this, alive = std::weak_ptr(alive_)](CUresult sealed, std::uint64_t image) {
    if (alive.expired()) return;
    if (sealed != CUDA_SUCCESS) {
      complain("pid {} ({}): an image could not be sealed: it is not its own, still mapped for writing, or of another size than announced.",
               client_.pid, client_.command);
    }
    proto::Done message;
    message.image = image;
    answer(message, sealed);
  });
}

void ClientConnection::on(const proto::SegmentCreate& request) {
  proto::SegmentCreated message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  int file = -1;
  status = manager_.segments().create(*session, request, message.segment, file);
  answer(message, status, {.file = file});
}

void ClientConnection::on(const proto::SegmentOpen& request) {
  proto::SegmentCreated message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  int file = -1;
  status = manager_.segments().open(*session, request, message.segment, file);
  answer(message, status, {.file = file});
}

void ClientConnection::on(const proto::PeerSegment& request) {
  proto::SegmentCreated message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  int file = -1;
  status = manager_.segments().open_peers(*session, request, message.segment, file);
  answer(message, status, {.file = file});
}

void ClientConnection::on(const proto::MemoryShare& request) {
  proto::MemoryShared message;
  CUresult status = CUDA_SUCCESS;
  const ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  const auto name = manager_.chunks().share(*session, request.object);
  message.name = name.value_or(proto::MemoryName{});
  answer(message, name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

void ClientConnection::on(const proto::MemoryOpen& request) {
  proto::MemoryOpened message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  DeviceChunks::Opened opened;
  status = manager_.open_memory(*session, request, opened);
  message.size_bytes = opened.size_bytes;
  message.is_own = opened.is_own ? 1 : 0;
  message.device = opened.device + 1;
  answer(message, status);
}

void ClientConnection::on(const proto::ExternalOffer& request, proto::FileDescriptor descriptor) {
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session != nullptr) status = manager_.offer_external(*session, request, descriptor);
  answer(proto::ExternalTaken{}, status);
}

void ClientConnection::on(const proto::LeaseAdd& request) {
  proto::LeaseAdded message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(message, status);
  const auto lease = manager_.add_lease(*session, request.size_bytes);
  message.lease = lease.value_or(proto::Lease{});
  answer(message, lease ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

void ClientConnection::on(const proto::PeerLease& request) {
  proto::PeerLeased message;
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session != nullptr) status = manager_.open_peers(*session, request.address, message.lease);
  answer(message, status);
}

// Also after the session has failed: a kernel's last words are an assertion's.
void ClientConnection::on(const proto::OutputTake&) {
  proto::OutputTaken message;
  if (ClientSession* session = manager_.find(session_)) take_output(*session, message);
  answer(message, CUDA_SUCCESS);
}

void ClientConnection::on(const proto::TrialEnded& request) {
  if (ClientSession* session = manager_.find(session_)) manager_.trial_ended(*session, request);
  answer(proto::TrialNoted{}, CUDA_SUCCESS);
}

void ClientConnection::on(const proto::LeaseReplace& request) {
  CUresult status = CUDA_SUCCESS;
  ClientSession* session = live_session(status);
  if (session == nullptr) return answer(proto::LeaseReplaced{}, status);
  set_busy(true);
  const bool device = request.refused.address == session->device_lease.address;
  manager_.replace_lease(*session, request.refused, [this, device](CUresult replaced, ClientSession& answered) {
    proto::LeaseReplaced message;
    message.lease = device ? answered.device_lease : answered.pinned_lease;
    answer(message, replaced);
  });
}

}  // namespace mpsshim::broker::control
