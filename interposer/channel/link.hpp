// SPDX-License-Identifier: Apache-2.0
// One epoch of the channel: the mapped memory, the producer's half of the ring, the reply slots, the fence waiters, the doorbells. After an
// executor was replaced the channel goes on with another Link; threads that still wait in the old one keep it alive.
// The producer is used under the channel's lock; reply slots and fence waiters are claimed by any thread without it.
// Trust: the broker is trusted, sizes are clamped all the same so that a broken one cannot make this process read outside a slot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "interposer/channel/doorbell.hpp"
#include "interposer/channel/wait.hpp"
#include "proto/channel.hpp"
#include "proto/record.hpp"
#include "proto/ring_producer.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer {

class Link {
 public:
  // Maps a channel's memory file. Empty if it cannot be mapped or is no channel of our layout.
  [[nodiscard]] static std::shared_ptr<Link> map(const proto::FileDescriptor& file, proto::FileDescriptor ring_doorbell,
                                                 proto::FileDescriptor completion_doorbell);

  [[nodiscard]] proto::ChannelHeader& header() { return *reinterpret_cast<proto::ChannelHeader*>(control_.data()); }
  [[nodiscard]] proto::FenceWaiter& waiter(std::uint32_t index) {
    return reinterpret_cast<proto::FenceWaiter*>(control_.data() + proto::kFenceWaiterOffset)[index];
  }
  [[nodiscard]] proto::ReplySlot& slot(std::uint32_t index) {
    return *reinterpret_cast<proto::ReplySlot*>(control_.data() + proto::kReplyOffset + index * proto::kReplySlotBytes);
  }
  [[nodiscard]] const std::byte* payload(std::uint32_t index) { return reinterpret_cast<const std::byte*>(&slot(index)) + sizeof(proto::ReplySlot); }
  [[nodiscard]] proto::RingProducer& producer() { return producer_; }
  [[nodiscard]] const std::byte* ring_memory() const { return ring_.data(); }
  [[nodiscard]] std::uint64_t epoch() { return header().epoch; }

  // In a timeline: from the record that is to be published next to its work (StreamPost::append).
  void draw_arrow();

  // Reply slots. The last is kept for recovery, so that waiting calls cannot starve the thread that brings the session back.
  [[nodiscard]] std::optional<std::uint32_t> claim_slot();
  [[nodiscard]] std::uint32_t recovery_slot() const { return proto::kReplySlots - 1; }
  void adopt_slot(std::uint32_t index);  // a call carried over from the link before: its slot is taken and pending
  void arm_slot(std::uint32_t index) { slot(index).state.store(proto::ReplySlot::pending, std::memory_order_relaxed); }
  void release_slot(std::uint32_t index);
  // Sleeps while no slot is free, at most `timeout_us`.
  void wait_for_slot(std::uint64_t timeout_us);
  // True once the slot is answered; sleep_on_slot() sleeps until it is, at most `timeout_us`.
  [[nodiscard]] bool is_answered(std::uint32_t index) {
    return slot(index).state.load(std::memory_order_acquire) == proto::ReplySlot::done;  // pairs with the executor's exchange to done
  }
  void sleep_on_slot(std::uint32_t index, std::uint64_t timeout_us);

  void wake_executor() const {
    ring_doorbell_.ring();
    Wait::note_wake();
  }
  void wake_completion() const { completion_doorbell_.ring(); }

  // Set once, by recovery, before the next link is published; read by those who have come through recovery since.
  struct End {
    std::uint64_t consumed = 0;    // position up to which the old executor has read
    std::uint64_t carried_to = 0;  // where the record at `consumed` lies in the next link; the others follow in order
    std::shared_ptr<Link> successor;
  };
  End end;
  [[nodiscard]] bool was_carried(std::uint64_t position) const { return position >= end.consumed; }
  [[nodiscard]] std::uint64_t carried_to(std::uint64_t position) const { return position - end.consumed + end.carried_to; }

 private:
  static constexpr std::uint32_t kOrdinarySlots = (1u << (proto::kReplySlots - 1)) - 1;

  proto::Mapping control_;
  proto::Mapping ring_;
  proto::RingProducer producer_;
  Doorbell ring_doorbell_;
  Doorbell completion_doorbell_;
  std::atomic<std::uint32_t> free_slots_{kOrdinarySlots};
  std::atomic<std::uint32_t> released_{0};  // counts releases; futex word of wait_for_slot
  std::atomic<std::uint32_t> slot_sleepers_{0};
};

// Sleeps on a fence word: claims a FenceWaiter at the first sleep, arms it, rings the completion doorbell; gives it back in the end.
// Where all waiters are taken it sleeps for short steps instead.
class FenceSleep {
 public:
  FenceSleep(Link& link, std::uint32_t fence, std::uint32_t target) : link_(link), fence_(fence), target_(target) {}
  FenceSleep(const FenceSleep&) = delete;
  FenceSleep& operator=(const FenceSleep&) = delete;
  ~FenceSleep();
  void operator()(std::uint64_t timeout_us);

 private:
  static constexpr std::uint32_t kNone = ~0u;
  void claim();

  Link& link_;
  std::uint32_t fence_;
  std::uint32_t target_;
  std::uint32_t waiter_ = kNone;
};

}  // namespace mpsshim::interposer
