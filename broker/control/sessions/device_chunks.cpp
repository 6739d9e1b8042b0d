// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/device_chunks.hpp"

#include <algorithm>
#include <utility>

#include "broker/control/base/complaints.hpp"
#include "broker/control/base/descriptor_kind.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::uint32_t kDmaBufFd = 9;  // CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD, which cuda.h has since CUDA 13.0

bool is_of_type(DescriptorKind kind, std::uint32_t handle_type, bool is_cpu_device) {
  if (handle_type == kDmaBufFd) return kind == DescriptorKind::dma_buf;
  return handle_type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && kind == (is_cpu_device ? DescriptorKind::memory_file : DescriptorKind::gpu);
}

}  // namespace

std::optional<proto::MemoryName> DeviceChunks::share(const ClientSession& session, std::uint64_t object) {
  const Segment* segment = session.segments.find(object);
  const bool holds_events = segment != nullptr && segment->purpose == proto::SegmentPurpose::events;
  if (!holds_events && !session.chunks.all().contains(object)) return std::nullopt;
  return shares_.name({session.id, object});
}

CUresult DeviceChunks::open(ClientSession& session, const proto::MemoryOpen& request, const proto::DriverFacts& facts, Opened& opened) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  const bool is_id = proto::MemoryId{request.memory}.has_kind() || proto::ExternalMemoryId{request.memory}.has_kind();
  if (!is_id || session.chunks.all().contains(request.memory)) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<ShareTable::Shared> shared = shares_.find(request.name);
  const ClientSession* owner = shared ? sessions_.find(shared->session) : nullptr;
  const auto chunk = owner != nullptr ? owner->chunks.all().find(shared->object) : decltype(owner->chunks.all().end()){};
  if (owner == nullptr || chunk == owner->chunks.all().end()) return CUDA_ERROR_INVALID_VALUE;
  if (owner->client.uid != session.client.uid) {
    complain("{}: memory of {} is another user's; it is not opened.", session.name(), owner->name());
    return CUDA_ERROR_INVALID_VALUE;
  }
  // What a session has opened it may share in turn: the charge knows whose device it is.
  const unsigned device = chunk->second.charge->device();
  if (device != session.device && !proto::MemoryId{request.memory}.has_kind()) return CUDA_ERROR_NOT_SUPPORTED;
  if (device != session.device && facts.peer[session.device][device].can_access == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (session.announced.size() >= ClientSession::kMostAnnounced) return CUDA_ERROR_OUT_OF_MEMORY;
  session.announced.emplace(request.memory, chunk->second.charge);
  opened = {chunk->second.size_bytes, owner == &session || is_one_process(owner->client, session.client), device, owner->id};
  session.executor->send({message::PieceAdd{.session = session.id, .memory = request.memory, .piece = ++last_piece_, .size_bytes = opened.size_bytes},
                          {.handle = chunk->second.handle.get()}});
  return CUDA_SUCCESS;
}

CUresult DeviceChunks::offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor,
                                      bool is_cpu_device) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  const bool is_new = proto::ExternalMemoryId{request.memory}.has_kind() && !session.announced.contains(request.memory);
  if (!is_new || request.size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const DescriptorFacts found = look_at(descriptor.get());
  if (!is_of_type(found.kind, request.handle_type, is_cpu_device)) {
    complain("{}: a descriptor that it offers as external memory is of another kind; it is not imported.", session.name());
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found.size_bytes && *found.size_bytes < request.size_bytes) {
    complain("{}: external memory of {} bytes is offered as one of {}; it is not imported.", session.name(), *found.size_bytes, request.size_bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (session.announced.size() >= ClientSession::kMostAnnounced) return CUDA_ERROR_OUT_OF_MEMORY;
  session.announced.emplace(request.memory, nullptr);
  session.executor->send({message::PieceAdd{.session = session.id,
                                            .memory = request.memory,
                                            .piece = ++last_piece_,
                                            .size_bytes = request.size_bytes,
                                            .handle_type = request.handle_type},
                          {.handle = descriptor.get()}});
  return CUDA_SUCCESS;
}

// Answered whoever asks: a thread of the executor waits.
void DeviceChunks::grant(ManagedExecutor& executor, ClientSession* session, const message::MemoryWant& want) {
  message::MemoryGrant answer{.session = want.session, .question = want.question, .status = CUDA_ERROR_MPS_SERVER_NOT_READY};
  if (session != nullptr) {
    const uid_t uid = session->client.uid;
    const std::uint64_t of_namespace = namespace_left_(*session);
    const bool is_within = want.size_bytes <= session->memory_left_bytes();
    const bool is_for_namespace = want.size_bytes <= of_namespace;
    const bool is_free = want.size_bytes <= others_left_(*session);
    DeviceChargeRef charge =
        is_within && is_for_namespace && is_free ? quota_.take(session->device, uid, session->device_held, want.size_bytes) : nullptr;
    answer.status = charge != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (!is_within) {
      complain("{}: {} MiB of device memory refused: it holds {} MiB of the {} MiB that its limit allows (set_device_pinned_mem_limit, or its own).",
               session->name(), want.size_bytes >> 20, *session->device_held >> 20, session->memory_limit_bytes.value_or(0) >> 20);
    } else if (!is_for_namespace) {
      complain("{}: {} MiB of device memory refused: clients of its namespace {} leave {} MiB of what they may have together (namespace set).",
               session->name(), want.size_bytes >> 20, session->name_space, of_namespace >> 20);
    } else if (!is_free) {
      complain("{}: {} MiB of device memory refused: the rest of device {} is kept for other namespaces (namespace set --pinned-memory-request).",
               session->name(), want.size_bytes >> 20, session->device);
    } else if (charge == nullptr) {
      complain("{}: {} MiB of device memory refused: clients of user {} hold {} MiB on device {}, and may hold {} MiB (--user-device-mib).",
               session->name(), want.size_bytes >> 20, uid, quota_.held(session->device, uid) >> 20, session->device, quota_.limit() >> 20);
    } else if (want.size_bytes != 0) {
      session->granted[want.question] = std::move(charge);
    }
    answer.left_bytes =
        std::min({quota_.left(session->device, uid), session->memory_left_bytes(), namespace_left_(*session), others_left_(*session)});
  }
  executor.send(answer);
}

void DeviceChunks::chunk_created(ClientSession& session, Received<message::ChunkCreated> received) {
  auto& [created, fds] = received;
  // Granted before, or another session's; without a limit it has not been asked for.
  DeviceChargeRef charge;
  if (auto shared = session.announced.extract(created.chunk); !shared.empty()) charge = std::move(shared.mapped());
  if (auto granted = session.granted.extract(created.grant); !granted.empty()) charge = std::move(granted.mapped());
  if (charge == nullptr) charge = quota_.add(session.device, session.client.uid, session.device_held, created.size_bytes);
  session.chunks.add(created.chunk, created.size_bytes, std::move(fds.handle), std::move(charge));
}

void DeviceChunks::chunk_released(ClientSession& session, std::uint64_t object) {
  shares_.forget({session.id, object});
  session.chunks.release(object);
}

}  // namespace mpsshim::broker::control
