// SPDX-License-Identifier: Apache-2.0
// The trusting half of the command ring: the client writes records and publishes them. One RingProducer serves a channel; the caller holds
// the channel's lock from reserve() to publish(), so records of all threads form one total order.
// It trusts its own position and checks the consumer's only so far that a broken broker cannot make it write over unread records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "proto/channel.hpp"
#include "proto/record.hpp"

namespace mpsshim::proto {

class RingProducer {
 public:
  RingProducer() = default;
  // `ring` is mapped twice back to back.
  RingProducer(ChannelHeader* header, std::byte* ring) : header_(header), ring_(ring) {}

  // Room for one record of `size` bytes (as record_size() gives), or nullptr while the ring is full: then wait_for_room().
  [[nodiscard]] std::byte* reserve(std::uint32_t size) {
    if (tail_ + size - cached_head_ > kRingBytes) {
      cached_head_ = header_->head.load(std::memory_order_acquire);  // pairs with RingConsumer::release
      if (tail_ + size - cached_head_ > kRingBytes) return nullptr;
    }
    return ring_ + tail_ % kRingBytes;
  }

  // Makes the reserved record visible. True if the executor sleeps and must be woken by the doorbell.
  // The exchange is a full barrier between the tail and the look at consumer_idle; pairs with RingConsumer::prepare_sleep.
  [[nodiscard]] bool publish(std::uint32_t size) {
    const std::uint64_t begin = std::exchange(tail_, tail_ + size);
    if (begin / kBlockBytes != tail_ / kBlockBytes) [[unlikely]]
      first_in_block_[tail_ / kBlockBytes % kBlocks] = tail_;
    ++sequence_;
    header_->tail.exchange(tail_, std::memory_order_seq_cst);
    fetch_next();
    return header_->consumer_idle.load(std::memory_order_relaxed) != 0 && header_->consumer_idle.exchange(0, std::memory_order_seq_cst) != 0;
  }

  // Sleeps until the consumer moved its head or `timeout_us` passed.
  void wait_for_room(std::uint64_t timeout_us);

  [[nodiscard]] std::uint64_t position() const { return tail_; }  // of the next record, in bytes since the epoch began
  // The first record of those that are still there as they were written, read or not.
  [[nodiscard]] std::uint64_t oldest_record() const {
    if (tail_ + kMaxRecordBytes <= kRingBytes) return 0;
    // Behind that a record may be half written.
    const std::uint64_t block = (tail_ + kMaxRecordBytes - kRingBytes + kBlockBytes - 1) / kBlockBytes;
    return first_in_block_[block % kBlocks];
  }
  [[nodiscard]] std::uint32_t next_sequence() const { return sequence_ + 1; }
  [[nodiscard]] bool empty() const { return header_->head.load(std::memory_order_acquire) == tail_; }

 private:
  // No record is longer, so there is one that begins in each.
  static constexpr std::uint64_t kBlockBytes = kMaxRecordBytes;
  static constexpr std::uint64_t kBlocks = kRingBytes / kBlockBytes;

  // The consumer has read these lines a turn of the ring ago, so they are in its cache. Had for writing now, they are here when the next record
  // comes; else the exchange behind that one waits for them.
  void fetch_next() const {
#ifdef __x86_64__
    constexpr std::size_t kLines = 4;  // most launches
    for (std::size_t line = 0; line < kLines; ++line) asm volatile("prefetchw %0" : : "m"(ring_[tail_ % kRingBytes + line * 64]));
#endif
  }

  ChannelHeader* header_ = nullptr;
  std::byte* ring_ = nullptr;
  std::uint64_t tail_ = 0;
  std::uint64_t cached_head_ = 0;
  std::uint32_t sequence_ = 0;
  std::array<std::uint64_t, kBlocks> first_in_block_{};  // positions
};

}  // namespace mpsshim::proto
