// SPDX-License-Identifier: Apache-2.0
// The distrusting half of the command ring. The executor copies whole records into private memory, checks their headers there, and only
// then lets anybody look at them. Its position is its own; the shared words are advice. Any inconsistency is reported once and ends the session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/channel.hpp"
#include "proto/record.hpp"

namespace mpsshim::proto {

enum class RingFault : std::uint8_t { none, tail_out_of_range, size_out_of_range, size_unaligned, trailing_too_long, sequence_gap };
[[nodiscard]] const char* to_string(RingFault fault);

class RingConsumer {
 public:
  struct Batch {
    std::size_t bytes = 0;  // whole records, already in the caller's buffer
    std::uint32_t records = 0;
    RingFault fault = RingFault::none;  // the records before the bad one are still valid
  };

  RingConsumer() = default;
  RingConsumer(ChannelHeader* header, const std::byte* ring) : header_(header), ring_(ring) {}

  // Copies as many whole records as fit into `buffer` (at least kMaxRecordBytes long). They stay in the ring.
  [[nodiscard]] Batch peek(std::span<std::byte> buffer) const;
  // The first `bytes` of what the last peek() found, so many whole records, are dealt with: their room is the producer's again.
  void release(std::size_t bytes, std::uint32_t records);
  // Both, for all that is there.
  [[nodiscard]] Batch copy_out(std::span<std::byte> buffer) {
    const Batch batch = peek(buffer);
    release(batch.bytes, batch.records);
    return batch;
  }

  // Fetches what has_records() and peek() look at first.
  void prefetch() const {
    if (header_ == nullptr) return;
    __builtin_prefetch(&header_->tail);
    __builtin_prefetch(ring_ + head_ % kRingBytes);
    __builtin_prefetch(ring_ + head_ % kRingBytes + 64);
  }

  // True if a record is waiting. One load; no promise about its validity.
  [[nodiscard]] bool has_records() const { return header_->tail.load(std::memory_order_acquire) != head_; }

  // Announces sleep, then looks again. False: a record came meanwhile, do not sleep. Pairs with the exchanges in RingProducer::publish.
  [[nodiscard]] bool prepare_sleep() {
    header_->consumer_idle.store(1, std::memory_order_seq_cst);
    if (header_->tail.load(std::memory_order_seq_cst) == head_) return true;
    header_->consumer_idle.store(0, std::memory_order_relaxed);
    return false;
  }

  // Awake again without having been rung for: the producer need not ring. One that has rung meanwhile wakes nobody.
  void end_sleep() { header_->consumer_idle.store(0, std::memory_order_relaxed); }

 private:
  ChannelHeader* header_ = nullptr;
  const std::byte* ring_ = nullptr;
  std::uint64_t head_ = 0;
  std::uint32_t sequence_ = 0;
};

}  // namespace mpsshim::proto
