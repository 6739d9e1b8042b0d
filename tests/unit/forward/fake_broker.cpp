// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/forward/fake_broker.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/futex.hpp"

namespace mpsshim::test {

ChannelEnds make_channel(std::uint64_t epoch) {
  const proto::FileDescriptor file = proto::create_memory_file("test channel", proto::kChannelBytes);
  if (!file.valid() || !proto::seal(file, proto::Seal::size)) throw std::runtime_error("no memory file");
  {
    const proto::Mapping page = proto::Mapping::map(file, 0, proto::kPageBytes, proto::Access::read_write);
    auto* header = new (page.data()) proto::ChannelHeader{};
    header->magic = proto::kChannelMagic;
    header->layout_major = proto::kLayoutMajor;
    header->epoch = epoch;
    header->session = 1;
  }
  ChannelEnds ends;
  ends.ring_doorbell = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ends.completion_doorbell = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ends.link = interposer::Link::map(file, ends.ring_doorbell.duplicate(), ends.completion_doorbell.duplicate());
  if (ends.link == nullptr) throw std::runtime_error("the channel was not mapped");
  return ends;
}

void answer(interposer::Link& link, std::uint16_t slot, CUresult status, std::span<const std::byte> payload) {
  proto::ReplySlot& reply = link.slot(slot);
  reply.status = static_cast<std::uint32_t>(status);
  reply.size_bytes = static_cast<std::uint32_t>(payload.size());
  if (!payload.empty()) std::memcpy(const_cast<std::byte*>(link.payload(slot)), payload.data(), payload.size());
  if (reply.state.exchange(proto::ReplySlot::done, std::memory_order_acq_rel) == proto::ReplySlot::sleeping) {
    proto::futex_wake_all(reply.state);
  }
}

FakeExecutor::FakeExecutor(ChannelEnds& ends, Handler handler)
    : ends_(ends), handler_(std::move(handler)), consumer_(&ends.link->header(), ends.link->ring_memory()), thread_([this] { run(); }) {}

void FakeExecutor::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  const std::uint64_t one = 1;
  (void)!write(ends_.ring_doorbell.get(), &one, sizeof one);
  thread_.join();
}

void FakeExecutor::run() {
  std::vector<std::byte> buffer(proto::kMaxRecordBytes);
  while (!stopping_.load()) {
    const auto batch = consumer_.copy_out(buffer);
    for (std::size_t at = 0; at < batch.bytes;) {
      proto::RecordHeader header;
      std::memcpy(&header, buffer.data() + at, sizeof header);
      handler_(header, buffer.data() + at + sizeof header);
      at += header.size_bytes;
    }
    if (batch.fault != proto::RingFault::none) {
      fault_ = batch.fault;
      return;
    }
    if (batch.records != 0 || !consumer_.prepare_sleep()) continue;
    pollfd doorbell{ends_.ring_doorbell.get(), POLLIN, 0};
    if (poll(&doorbell, 1, 5000) <= 0) continue;
    std::uint64_t count = 0;
    if (read(ends_.ring_doorbell.get(), &count, sizeof count) > 0) doorbells_ += count;
  }
}

}  // namespace mpsshim::test
