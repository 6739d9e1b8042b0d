// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/client_channel.hpp"

#include <utility>

#include "broker/log.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

bool has_size(const proto::FileDescriptor& file, std::size_t at_least) {
  const std::optional<std::size_t> size = proto::sealed_size(file);
  return size && *size >= at_least;
}

}  // namespace

CUresult ClientChannel::open(const Driver& driver, Received<message::SessionOpen> received) {
  auto& [open, fds] = received;
  if (!has_size(fds.channel, proto::kChannelBytes) || !has_size(fds.fences, proto::kFenceSegmentBytes)) {
    log_error("Session {} (pid {}): its channel has a size that is not sealed", open.session, open.client_pid);
    return CUDA_ERROR_INVALID_VALUE;
  }
  epoch_ = open.epoch;
  control_ = proto::Mapping::map(fds.channel, 0, proto::kRingOffset, proto::Access::read_write);
  ring_memory_ = proto::Mapping::map_twice(fds.channel, proto::kRingOffset, proto::kRingBytes, proto::Access::read_only);
  fences_ = proto::Mapping::map(fds.fences, 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  if (!control_ || !ring_memory_ || !fences_) return CUDA_ERROR_OUT_OF_MEMORY;
  if (header().magic != proto::kChannelMagic || header().layout_major != proto::kLayoutMajor) {
    log_error("Session {} (pid {}): its channel has layout {}, this executor serves {}", open.session, open.client_pid,
              header().layout_major, proto::kLayoutMajor);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const proto::trace::Span span("driver", "cuMemHostRegister", {"session", open.session});
  const CUresult result = OwnMemory::enroll(driver, {fences_.data(), proto::kFenceSegmentBytes},
                                            CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE, fence_address_, registered_);
  if (!registered_) return result;
  ring_ = proto::RingConsumer(&header(), ring_memory_.data());
  ring_doorbell_ = std::move(fds.ring_doorbell);
  completion_doorbell_ = std::move(fds.completion_doorbell);
  return result;
}

void ClientChannel::unregister(const Driver& driver) {
  if (std::exchange(registered_, false)) OwnMemory::dismiss(driver, fences_.data());
}

}  // namespace mpsshim::broker
