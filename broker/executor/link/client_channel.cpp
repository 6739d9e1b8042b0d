// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/client_channel.hpp"

#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

bool has_size(const proto::FileDescriptor& file, std::size_t at_least) {
  const std::optional<std::size_t> size = proto::sealed_size(file);
  return size && *size >= at_least;
}

}  // namespace

CUresult ClientChannel::open(const Driver& driver, const ExecutorPacket& packet, proto::ReceivedFds& fds) {
  if (fds.count != 4 || !has_size(fds.fds[0], proto::kChannelBytes) || !has_size(fds.fds[1], proto::kFenceSegmentBytes)) {
    log_error("Session {} (pid {}): its channel has {} descriptors or a size that is not sealed", packet.header.session, packet.client_pid,
              fds.count);
    return CUDA_ERROR_INVALID_VALUE;
  }
  control_ = proto::Mapping::map(fds.fds[0], 0, proto::kRingOffset, proto::Access::read_write);
  ring_memory_ = proto::Mapping::map_twice(fds.fds[0], proto::kRingOffset, proto::kRingBytes, proto::Access::read_only);
  fences_ = proto::Mapping::map(fds.fds[1], 0, proto::kFenceSegmentBytes, proto::Access::read_write);
  if (!control_ || !ring_memory_ || !fences_) return CUDA_ERROR_OUT_OF_MEMORY;
  if (header().magic != proto::kChannelMagic || header().layout_major != proto::kLayoutMajor) {
    log_error("Session {} (pid {}): its channel has layout {}, this executor serves {}", packet.header.session, packet.client_pid,
              header().layout_major, proto::kLayoutMajor);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const CUresult result = OwnMemory::enroll(driver, {fences_.data(), proto::kFenceSegmentBytes},
                                            CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE, fence_address_, registered_);
  if (!registered_) return result;
  ring_ = proto::RingConsumer(&header(), ring_memory_.data());
  ring_doorbell_ = std::move(fds.fds[2]);
  completion_doorbell_ = std::move(fds.fds[3]);
  return result;
}

void ClientChannel::unregister(const Driver& driver) {
  if (std::exchange(registered_, false)) OwnMemory::dismiss(driver, fences_.data());
}

}  // namespace mpsshim::broker
