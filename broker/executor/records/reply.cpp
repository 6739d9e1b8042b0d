// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/records/reply.hpp"

#include <cstring>
#include <utility>

#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "proto/futex.hpp"

namespace mpsshim::broker {

Reply::Reply(std::shared_ptr<Session> session, std::uint32_t slot, std::uint32_t sequence)
    : session_(std::move(session)), slot_(slot), sequence_(sequence) {}

Reply& Reply::operator=(Reply&& other) noexcept {
  if (this != &other) {
    if (session_) answer(CUDA_ERROR_UNKNOWN);
    session_ = std::move(other.session_);
    slot_ = other.slot_;
    sequence_ = other.sequence_;
  }
  return *this;
}

Reply::~Reply() {
  if (session_) answer(CUDA_ERROR_UNKNOWN);
}

void Reply::answer(CUresult status, std::span<const std::byte> body, std::span<const std::byte> trailing) {
  const std::shared_ptr<Session> session = std::exchange(session_, nullptr);
  if (!session) return;
  if (body.size() + trailing.size() > proto::kMaxReplyBytes) {
    log_error("Session {}: a reply of {} bytes exceeds its slot of {}", session->id(), body.size() + trailing.size(), proto::kMaxReplyBytes);
    status = CUDA_ERROR_UNKNOWN;
    body = trailing = {};
  }
  // The client makes the call again in the executor it moves to. (It can write the state; then it waits in vain, and nobody else.)
  if (session->channel().has_moved()) return;
  std::byte* memory = session->channel().reply_slot(slot_);
  auto& slot = *reinterpret_cast<proto::ReplySlot*>(memory);
  std::byte* payload = memory + sizeof(proto::ReplySlot);
  if (!body.empty()) std::memcpy(payload, body.data(), body.size());
  if (!trailing.empty()) std::memcpy(payload + body.size(), trailing.data(), trailing.size());
  slot.status = static_cast<std::uint32_t>(status);
  slot.size_bytes = static_cast<std::uint32_t>(body.size() + trailing.size());
  slot.sequence = sequence_;
  // Pairs with the client's load of `state`; a client that sleeps has put `sleeping` there with a compare-exchange from `pending`.
  if (slot.state.exchange(proto::ReplySlot::done, std::memory_order_seq_cst) == proto::ReplySlot::sleeping) proto::futex_wake_all(slot.state);
}

}  // namespace mpsshim::broker
