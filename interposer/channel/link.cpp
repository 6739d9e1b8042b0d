// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/link.hpp"

#include <atomic>
#include <bit>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "proto/futex.hpp"
#include "proto/post_arrow.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

void Link::draw_arrow() { proto::trace::arrow_tail(proto::arrow_number(header().session, epoch(), producer_.next_sequence())); }

std::shared_ptr<Link> Link::map(const proto::FileDescriptor& file, proto::FileDescriptor ring_doorbell, proto::FileDescriptor completion_doorbell) {
  auto link = std::make_shared<Link>();
  link->control_ = proto::Mapping::map(file, 0, proto::kRingOffset, proto::Access::read_write);
  link->ring_ = proto::Mapping::map_twice(file, proto::kRingOffset, proto::kRingBytes, proto::Access::read_write);
  if (!link->control_ || !link->ring_) return nullptr;
  const proto::ChannelHeader& header = link->header();
  if (header.magic != proto::kChannelMagic || header.layout_major != proto::kLayoutMajor) {
    errno = EPROTO;
    return nullptr;
  }
  link->producer_ = proto::RingProducer(&link->header(), link->ring_.data());
  link->ring_doorbell_ = Doorbell(std::move(ring_doorbell));
  link->completion_doorbell_ = Doorbell(std::move(completion_doorbell));
  return link;
}

std::optional<std::uint32_t> Link::claim_slot() {
  std::uint32_t free = free_slots_.load(std::memory_order_relaxed);
  while (free != 0) {
    const std::uint32_t bit = free & (~free + 1);
    // Acquire pairs with release_slot: the last owner has read its reply.
    if (free_slots_.compare_exchange_weak(free, free & ~bit, std::memory_order_acquire, std::memory_order_relaxed)) {
      return static_cast<std::uint32_t>(std::countr_zero(bit));
    }
  }
  return std::nullopt;
}

void Link::adopt_slot(std::uint32_t index) {
  free_slots_.fetch_and(~(1u << index), std::memory_order_relaxed);
  arm_slot(index);
}

void Link::release_slot(std::uint32_t index) {
  slot(index).state.store(proto::ReplySlot::idle, std::memory_order_relaxed);
  if (index == recovery_slot()) return;
  free_slots_.fetch_or(1u << index, std::memory_order_seq_cst);
  // Pairs with wait_for_slot: either it sees the slot free or we see it asleep.
  if (slot_sleepers_.load(std::memory_order_seq_cst) != 0) {
    released_.fetch_add(1, std::memory_order_seq_cst);
    proto::futex_wake_all(released_);
  }
}

void Link::wait_for_slot(std::uint64_t timeout_us) {
  const std::uint32_t seen = released_.load(std::memory_order_seq_cst);
  slot_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (free_slots_.load(std::memory_order_seq_cst) == 0) proto::futex_wait(released_, seen, timeout_us);
  slot_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Link::sleep_on_slot(std::uint32_t index, std::uint64_t timeout_us) {
  std::atomic<std::uint32_t>& state = slot(index).state;
  std::uint32_t expected = proto::ReplySlot::pending;
  // The executor's exchange to done sees either pending (no wake needed, our CAS fails) or sleeping (it wakes us).
  state.compare_exchange_strong(expected, proto::ReplySlot::sleeping, std::memory_order_seq_cst);
  if (expected == proto::ReplySlot::done) return;
  proto::futex_wait(state, proto::ReplySlot::sleeping, timeout_us);
}

void FenceSleep::claim() {
  for (std::uint32_t index = 0; index < proto::kFenceWaiters; ++index) {
    std::uint32_t expected = proto::FenceWaiter::free;
    if (link_.waiter(index).state.compare_exchange_strong(expected, proto::FenceWaiter::claimed, std::memory_order_acquire,
                                                          std::memory_order_relaxed)) {
      waiter_ = index;
      return;
    }
  }
}

void FenceSleep::operator()(std::uint64_t timeout_us) {
  constexpr std::uint64_t kStepWithoutWaiterUs = 200;
  if (waiter_ == kNone) claim();
  if (waiter_ == kNone) {
    usleep(kStepWithoutWaiterUs);
    return;
  }
  proto::FenceWaiter& waiter = link_.waiter(waiter_);
  if (waiter.state.load(std::memory_order_relaxed) != proto::FenceWaiter::armed) {
    // Atomic, since the completion thread may still be looking at the waiter's last use; what it reads then is not acted upon.
    std::atomic_ref(waiter.fence).store(fence_, std::memory_order_relaxed);
    std::atomic_ref(waiter.target).store(target_, std::memory_order_relaxed);
    waiter.state.store(proto::FenceWaiter::armed, std::memory_order_release);  // pairs with the completion thread's look at armed waiters
    link_.header().waiters_armed.fetch_add(1, std::memory_order_seq_cst);
    link_.wake_completion();
  }
  proto::futex_wait(waiter.state, proto::FenceWaiter::armed, timeout_us);
}

FenceSleep::~FenceSleep() {
  if (waiter_ != kNone) link_.waiter(waiter_).state.store(proto::FenceWaiter::free, std::memory_order_release);
}

}  // namespace mpsshim::interposer
