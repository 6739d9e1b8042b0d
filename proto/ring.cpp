// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "proto/futex.hpp"
#include "proto/ring_consumer.hpp"
#include "proto/ring_producer.hpp"

namespace mpsshim::proto {

void RingProducer::wait_for_room(std::uint64_t timeout_us) {
  const std::uint32_t seen = header_->head_futex.load(std::memory_order_seq_cst);
  header_->producer_waiting.store(1, std::memory_order_seq_cst);
  // Look again: the consumer may have moved between our failed reserve() and the mark. Pairs with RingConsumer::release.
  if (header_->head.load(std::memory_order_seq_cst) != cached_head_) return;
  futex_wait(header_->head_futex, seen, timeout_us);
}

const char* to_string(RingFault fault) {
  switch (fault) {
    case RingFault::none: return "none";
    case RingFault::tail_out_of_range: return "the ring's tail is out of range";
    case RingFault::size_out_of_range: return "a record's size is out of range";
    case RingFault::size_unaligned: return "a record's size is not a multiple of 8";
    case RingFault::trailing_too_long: return "a record's trailing bytes exceed its size";
    case RingFault::sequence_gap: return "a record's sequence number does not follow the last";
  }
  return "unknown";
}

namespace {

RingFault check_header(const RecordHeader& header, std::uint32_t expected_sequence) {
  if (header.size_bytes < sizeof(RecordHeader) || header.size_bytes > kMaxRecordBytes) return RingFault::size_out_of_range;
  if (header.size_bytes % kRecordAlignment != 0) return RingFault::size_unaligned;
  if (header.trailing_bytes > header.size_bytes - sizeof(RecordHeader)) return RingFault::trailing_too_long;
  if (header.sequence != expected_sequence) return RingFault::sequence_gap;
  return RingFault::none;
}

}  // namespace

RingConsumer::Batch RingConsumer::peek(std::span<std::byte> buffer) const {
  Batch batch;
  const std::uint64_t available = header_->tail.load(std::memory_order_acquire) - head_;  // pairs with RingProducer::publish
  if (available > kRingBytes) {
    batch.fault = RingFault::tail_out_of_range;
    return batch;
  }
  const std::size_t copied = available < buffer.size() ? static_cast<std::size_t>(available) : buffer.size();
  if (copied == 0) return batch;
  std::memcpy(buffer.data(), ring_ + head_ % kRingBytes, copied);
  while (copied - batch.bytes >= sizeof(RecordHeader)) {
    RecordHeader header;
    std::memcpy(&header, buffer.data() + batch.bytes, sizeof header);
    batch.fault = check_header(header, sequence_ + batch.records + 1);
    if (batch.fault != RingFault::none) break;
    if (header.size_bytes > copied - batch.bytes) {
      // Cut off by the buffer: the rest comes with the next batch. Cut off by the tail: the producer publishes whole records, so it lies.
      if (copied == available) batch.fault = RingFault::tail_out_of_range;
      break;
    }
    batch.bytes += header.size_bytes;
    ++batch.records;
  }
  if (batch.bytes == 0 && batch.fault == RingFault::none) batch.fault = RingFault::tail_out_of_range;
  return batch;
}

void RingConsumer::release(std::size_t bytes, std::uint32_t records) {
  head_ += bytes;
  sequence_ += records;
  header_->head.store(head_, std::memory_order_seq_cst);  // pairs with RingProducer::wait_for_room and reserve
  if (header_->producer_waiting.load(std::memory_order_seq_cst) != 0) {
    header_->producer_waiting.store(0, std::memory_order_relaxed);
    header_->head_futex.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(header_->head_futex);
  }
}

}  // namespace mpsshim::proto
