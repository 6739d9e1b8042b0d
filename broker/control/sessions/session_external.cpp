// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces (cuImportExternalMemory): its descriptor comes from the client, by the same road to the executor as memory that
// sessions share.
#include "broker/control/base/complaints.hpp"
#include "broker/control/base/descriptor_kind.hpp"
#include "broker/control/sessions/session_manager.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::uint32_t kDmaBufFd = 9;  // CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD, which cuda.h has since CUDA 13.0

bool is_of_type(DescriptorKind kind, std::uint32_t handle_type, bool is_cpu_device) {
  if (handle_type == kDmaBufFd) return kind == DescriptorKind::dma_buf;
  return handle_type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && kind == (is_cpu_device ? DescriptorKind::memory_file : DescriptorKind::gpu);
}

}  // namespace

CUresult SessionManager::offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  const bool is_new = proto::ExternalMemoryId{request.memory}.has_kind() && !session.announced.contains(request.memory);
  if (!is_new || request.size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const DescriptorFacts found = look_at(descriptor.get());
  if (!is_of_type(found.kind, request.handle_type, facts()->device[session.device].is_cpu_device != 0)) {
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

}  // namespace mpsshim::broker::control
