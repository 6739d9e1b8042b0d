// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/carry_over.hpp"

#include <cstring>
#include <utility>

#include "gen/records.hpp"
#include "proto/post_arrow.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

namespace {

proto::RecordHeader header_at(const Link& link, std::uint64_t position) {
  proto::RecordHeader header;
  std::memcpy(&header, link.ring_memory() + position % proto::kRingBytes, sizeof header);
  return header;
}

}  // namespace

std::uint32_t fence_of(const proto::RecordHeader& header, const std::byte* body) {
  if (header.id == static_cast<std::uint16_t>(proto::RecordId::Fence)) {
    proto::FenceRecord record;
    std::memcpy(&record, body, sizeof record);
    return record.fence_value;
  }
  if (header.id == static_cast<std::uint16_t>(proto::RecordId::EventRecord)) {
    proto::EventRecordRecord record;
    std::memcpy(&record, body, sizeof record);
    return record.fence_value;
  }
  if (header.id == static_cast<std::uint16_t>(proto::RecordId::HostFunction)) {
    proto::HostFunctionRecord record;
    std::memcpy(&record, body, sizeof record);
    return record.fence_value;
  }
  return 0;
}

std::optional<Unread> find_unread(Link& old_link) {
  Unread unread;
  unread.consumed = old_link.header().head.load(std::memory_order_acquire);
  unread.written = old_link.producer().position();
  if (unread.written - unread.consumed > proto::kRingBytes) return std::nullopt;
  for (std::uint64_t position = unread.consumed; position < unread.written;) {
    const proto::RecordHeader header = header_at(old_link, position);
    if (header.size_bytes < sizeof header || header.size_bytes > unread.written - position) return std::nullopt;
    if (header.size_bytes % proto::kRecordAlignment != 0) return std::nullopt;
    if (header.reply_slot < proto::kReplySlots) unread.reply_slots.push_back(header.reply_slot);
    const std::uint32_t value = fence_of(header, old_link.ring_memory() + position % proto::kRingBytes + sizeof header);
    std::uint32_t& first = unread.first_fence[header.stream.index() % proto::kFenceWords];
    if (value != 0 && first == 0) first = value;
    position += header.size_bytes;
  }
  return unread;
}

void adopt_reply_slots(const Unread& unread, Link& next_link) {
  for (const std::uint16_t slot : unread.reply_slots) next_link.adopt_slot(slot);
}

WaitEnd wait_for_room(Link& link, std::uint32_t size, PeerWatch peer) {
  proto::RingProducer& producer = link.producer();
  Wait wait("room in the new command ring", link.header(), peer);
  return wait.until([&] { return producer.reserve(size) != nullptr; }, [&](std::uint64_t timeout_us) { producer.wait_for_room(timeout_us); });
}

WaitEnd carry_over(const Unread& unread, Link& old_link, Link& next_link, PeerWatch peer, std::uint64_t& first) {
  proto::RingProducer& producer = next_link.producer();
  first = producer.position();
  for (std::uint64_t position = unread.consumed; position < unread.written;) {
    proto::RecordHeader header = header_at(old_link, position);
    if (const WaitEnd end = wait_for_room(next_link, header.size_bytes, peer); end != WaitEnd::ready) return end;
    std::byte* at = producer.reserve(header.size_bytes);
    std::memcpy(at, old_link.ring_memory() + position % proto::kRingBytes, header.size_bytes);
    position += header.size_bytes;
    const std::uint32_t sequence = std::exchange(header.sequence, producer.next_sequence());  // the new ring counts from 1
    if (proto::trace::enabled() && proto::has_arrow(static_cast<proto::RecordId>(header.id))) [[unlikely]] {
      proto::trace::arrow_head(proto::arrow_number(old_link.header().session, old_link.epoch(), sequence));
      proto::trace::arrow_tail(proto::arrow_number(next_link.header().session, next_link.epoch(), header.sequence));
    }
    std::memcpy(at, &header, sizeof header);
    if (producer.publish(header.size_bytes)) next_link.wake_executor();
  }
  return WaitEnd::ready;
}

}  // namespace mpsshim::interposer
