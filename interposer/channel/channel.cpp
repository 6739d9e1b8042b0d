// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/channel.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::interposer {

void Channel::set_link(std::shared_ptr<Link> link) {
  std::shared_ptr<Link> old;  // ends outside the lock: unmapping is slow
  const std::lock_guard lock(lock_);
  const std::lock_guard reading(link_mutex_);
  old = std::exchange(link_, std::move(link));
}

std::shared_ptr<Link> Channel::link() {
  const std::lock_guard reading(link_mutex_);
  return link_;
}

std::shared_ptr<Link> Channel::link_behind_writers() {
  const std::lock_guard lock(lock_);
  return link_;
}

CUresult Channel::settle(WaitEnd end, Link& link) {
  switch (end) {
    case WaitEnd::ready: return CUDA_SUCCESS;
    case WaitEnd::moved: return guardian_.recover(link.epoch());
    case WaitEnd::failed: {
      const auto error = static_cast<CUresult>(link.header().session_error.load(std::memory_order_acquire));
      return guardian_.fail(error != CUDA_SUCCESS ? error : CUDA_ERROR_MPS_RPC_FAILURE);
    }
    case WaitEnd::gone: return guardian_.fail(CUDA_ERROR_MPS_CONNECTION_FAILED);
  }
  return CUDA_ERROR_UNKNOWN;
}

std::pair<std::shared_ptr<Link>, WaitEnd> Channel::make_way(std::uint32_t size) {
  const std::shared_ptr<Link> link = link_;
  WaitEnd end = WaitEnd::ready;
  switch (static_cast<proto::SessionState>(link->header().session_state.load(std::memory_order_relaxed))) {
    case proto::SessionState::moved:
    case proto::SessionState::on_trial: end = WaitEnd::moved; break;
    case proto::SessionState::failed: end = WaitEnd::failed; break;
    case proto::SessionState::active: {
      proto::RingProducer& producer = link->producer();
      Wait wait("room in the command ring", link->header(), peer_);
      end = wait.until([&] { return producer.reserve(size) != nullptr || guardian_.has_other_moved(); },
                       [&](std::uint64_t timeout_us) { producer.wait_for_room(timeout_us); });
    }
  }
  return {link, end};
}

CUresult Channel::go_on(WaitEnd end, Link& link) {
  guardian_.follow_others();
  return settle(end, link);
}

bool Channel::write(Link& link, const RecordParts& parts, std::uint16_t reply_slot) {
  const std::uint32_t size = proto::record_size(parts.body.size(), parts.trailing.size());
  std::byte* at = link.producer().reserve(size);
  if (at == nullptr) return false;
  write_header(at, size, parts.id, reply_slot, link, parts.trailing.size(), parts.stream);
  at += sizeof(proto::RecordHeader);
  if (!parts.body.empty()) std::memcpy(at, parts.body.data(), parts.body.size());
  if (!parts.trailing.empty()) std::memcpy(at + parts.body.size(), parts.trailing.data(), parts.trailing.size());
  if (link.producer().publish(size)) link.wake_executor();
  return true;
}

void Channel::take_answer(Link& link, std::uint32_t slot, Answer& answer) {
  const proto::ReplySlot& reply = link.slot(slot);
  answer.status = static_cast<CUresult>(reply.status);
  answer.epoch = link.epoch();
  const std::size_t bytes = std::min<std::size_t>(reply.size_bytes, proto::kMaxReplyBytes);
  answer.payload.assign(link.payload(slot), link.payload(slot) + bytes);
}

CUresult Channel::claim_slot(Pending& pending) {
  for (;;) {
    pending.link = link();
    Link& link = *pending.link;
    std::optional<std::uint32_t> slot;
    Wait wait("a free reply slot", link.header(), peer_);
    const WaitEnd end = wait.until(
        [&] {
          slot = link.claim_slot();
          return slot.has_value() || guardian_.has_other_moved();
        },
        [&](std::uint64_t timeout_us) { link.wait_for_slot(timeout_us); });
    if (slot) {
      pending.slot = *slot;
      return CUDA_SUCCESS;
    }
    if (const CUresult error = go_on(end, link); error != CUDA_SUCCESS) return error;
  }
}

CUresult Channel::post_call(const RecordParts& parts, Pending& pending) {
  const std::uint32_t size = proto::record_size(parts.body.size(), parts.trailing.size());
  if (size > proto::kMaxRecordBytes) return CUDA_ERROR_INVALID_VALUE;
  for (;;) {
    if (const CUresult error = claim_slot(pending); error != CUDA_SUCCESS) return error;
    std::unique_lock lock(lock_);
    if (link_ == pending.link && is_active(*link_)) {
      pending.link->arm_slot(pending.slot);
      pending.position = link_->producer().position();
      if (write(*link_, parts, static_cast<std::uint16_t>(pending.slot))) return CUDA_SUCCESS;
    }
    pending.link->release_slot(pending.slot);  // it belongs to a link that has ended, or the ring is full
    const auto [blocked, end] = make_way(size);
    lock.unlock();
    if (const CUresult error = go_on(end, *blocked); error != CUDA_SUCCESS) return error;
  }
}

CUresult Channel::exchange(const RecordParts& parts, Repeat repeat, Answer& answer) {
  Pending pending;
  if (const CUresult error = post_call(parts, pending); error != CUDA_SUCCESS) return error;
  for (;;) {
    Link& link = *pending.link;
    Wait wait("the executor's reply", link.header(), peer_);  // from Reply::answer
    const WaitEnd end = wait.until([&] { return link.is_answered(pending.slot) || guardian_.has_other_moved(); },
                                   [&](std::uint64_t timeout_us) { link.sleep_on_slot(pending.slot, timeout_us); });
    if (end == WaitEnd::ready && !link.is_answered(pending.slot)) {
      guardian_.follow_others();
      continue;
    }
    if (end == WaitEnd::ready) {
      take_answer(link, pending.slot, answer);
      link.release_slot(pending.slot);
      return answer.status == CUDA_SUCCESS ? guardian_.look_for_kernel_error() : CUDA_SUCCESS;
    }
    if (const CUresult error = settle(end, link); error != CUDA_SUCCESS) return error;
    // Moved and back. What the old executor had not read was carried over, reply slot included; what it had read is lost.
    if (link.is_answered(pending.slot)) continue;
    if (link.was_carried(pending.position)) {
      pending.position = link.carried_to(pending.position);
      pending.link = std::shared_ptr<Link>(link.end.successor);
    } else if (repeat == Repeat::harmless) {
      if (const CUresult error = post_call(parts, pending); error != CUDA_SUCCESS) return error;
    } else {
      return CUDA_ERROR_MPS_SERVER_NOT_READY;
    }
  }
}

}  // namespace mpsshim::interposer
