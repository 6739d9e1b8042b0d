// SPDX-License-Identifier: Apache-2.0
// The obligation to answer one call. Move-only, answered once, from any thread; dropped unanswered it answers CUDA_ERROR_UNKNOWN, so no
// client waits for ever. Keeps the session, and with it the slot's memory, alive.
// The slot index was checked when the record was decoded; body and trailing bytes that exceed a slot are an error of ours and answered as such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

class Session;

class Reply {
 public:
  Reply() = default;
  Reply(std::shared_ptr<Session> session, std::uint32_t slot, std::uint32_t sequence);
  Reply(Reply&& other) noexcept = default;
  Reply& operator=(Reply&& other) noexcept;
  ~Reply();

  void answer(CUresult status, std::span<const std::byte> body = {}, std::span<const std::byte> trailing = {});
  template <typename Body>
  void answer_with(CUresult status, const Body& body, std::span<const std::byte> trailing = {}) {
    static_assert(std::is_trivially_copyable_v<Body>);
    if constexpr (std::is_empty_v<Body>) {
      answer(status, {}, trailing);  // an empty structure still has a byte, of any value
    } else {
      answer(status, std::as_bytes(std::span(&body, 1)), trailing);
    }
  }
  [[nodiscard]] bool is_pending() const { return session_ != nullptr; }

 private:
  std::shared_ptr<Session> session_;
  std::uint32_t slot_ = 0;
  std::uint32_t sequence_ = 0;
};

// For closures that std::function copies: a reply that several owners may hold and one answers.
using SharedReply = std::shared_ptr<Reply>;

}  // namespace mpsshim::broker
