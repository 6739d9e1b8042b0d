// SPDX-License-Identifier: Apache-2.0
// The memory that one client and this executor share (proto/channel.hpp), mapped and, for the fences, registered with the driver.
//
// Threads: open() and unregister() by one thread at a time; the ring belongs to the session's worker; everything else is safe anywhere.
// Trust: the client may write all of it at any time. What is read here is either checked or only concerns the client itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "broker/control_messages.hpp"
#include "broker/driver/driver.hpp"
#include "broker/executor/base/own_memory.hpp"
#include "proto/channel.hpp"
#include "proto/ring_consumer.hpp"
#include "proto/segment.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

class ClientChannel {
 public:
  ClientChannel() = default;
  ClientChannel(const ClientChannel&) = delete;

  // Takes the descriptors of SessionOpen: channel, fences, ring doorbell, completion doorbell. Sizes must be sealed.
  [[nodiscard]] CUresult open(const Driver& driver, Received<message::SessionOpen> received);
  // Undoes the registration; waits for every running kernel, so only in a quiet window.
  void unregister(const Driver& driver);

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  [[nodiscard]] proto::RingConsumer& ring() { return ring_; }
  [[nodiscard]] proto::ChannelHeader& header() const { return *reinterpret_cast<proto::ChannelHeader*>(control_.data()); }
  [[nodiscard]] std::span<proto::FenceWaiter, proto::kFenceWaiters> waiters() const {
    return std::span<proto::FenceWaiter, proto::kFenceWaiters>(reinterpret_cast<proto::FenceWaiter*>(control_.data() + proto::kFenceWaiterOffset),
                                                               proto::kFenceWaiters);
  }
  // `slot` is below kReplySlots: checked where it was read from a record.
  [[nodiscard]] std::byte* reply_slot(std::uint32_t slot) const { return control_.data() + proto::kReplyOffset + slot * proto::kReplySlotBytes; }

  // `index` is below kFenceWords.
  [[nodiscard]] proto::FenceWord& fence(std::uint32_t index) const { return reinterpret_cast<proto::FenceWord*>(fences_.data())[index]; }
  [[nodiscard]] OwnWord fence_word(std::uint32_t index) const { return OwnWord(fence_address_ + index * sizeof(proto::FenceWord)); }

  [[nodiscard]] CUdeviceptr kernel_error_address() const {
    return fence_address_ + proto::kKernelErrorWord * sizeof(proto::FenceWord) + offsetof(proto::FenceWord, kernel_error);
  }

  [[nodiscard]] int ring_doorbell() const { return ring_doorbell_.get(); }
  [[nodiscard]] int completion_doorbell() const { return completion_doorbell_.get(); }

  // A thread of the client has waited long for that fence: told by the completion thread, taken by the worker (interrupts.hpp).
  void note_long_wait(std::uint32_t fence) { long_wait_.store(fence + 1, std::memory_order_relaxed); }
  [[nodiscard]] bool has_long_wait() const { return long_wait_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] std::uint32_t take_long_wait() { return long_wait_.exchange(0, std::memory_order_relaxed) - 1; }

  // How long its waits may stay awake (AwakeWaits). The client may have written something else there: its own affair.
  void tell_awake_us(std::uint32_t limit_us) {
    if (told_awake_us_ != limit_us) header().awake_us.store(told_awake_us_ = limit_us, std::memory_order_relaxed);
  }

  // The control process has said that another executor will serve the client.
  [[nodiscard]] bool has_moved() const {
    return header().session_state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(proto::SessionState::moved);
  }
  // The client takes it with an exchange; the first error wins.
  void set_async_error(CUresult error) {
    std::uint32_t none = 0;
    header().async_error.compare_exchange_strong(none, static_cast<std::uint32_t>(error), std::memory_order_release, std::memory_order_relaxed);
  }
  // Work is lost that the client was told is accepted: every later call of its process gives this error. True: it is the first time.
  bool set_lost_work(CUresult error) {
    std::uint32_t none = 0;
    const bool is_first =
        header().lost_work.compare_exchange_strong(none, static_cast<std::uint32_t>(error), std::memory_order_release, std::memory_order_relaxed);
    set_async_error(error);
    return is_first;
  }
  // The client's process has this error for ever. The error is stored first: the client loads it after it has seen the state.
  void set_failed(CUresult error) {
    header().session_error.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
    header().session_state.store(static_cast<std::uint32_t>(proto::SessionState::failed), std::memory_order_release);
  }

 private:
  std::uint64_t epoch_ = 0;  // as the control process has it
  proto::Mapping control_;   // header, waiters, reply slots
  proto::Mapping ring_memory_;
  proto::Mapping fences_;
  CUdeviceptr fence_address_ = 0;
  bool registered_ = false;
  proto::RingConsumer ring_;
  proto::FileDescriptor ring_doorbell_;
  proto::FileDescriptor completion_doorbell_;
  std::uint32_t told_awake_us_ = 0;          // the worker's
  std::atomic<std::uint32_t> long_wait_{0};  // the fence and 1; 0: nobody
};

}  // namespace mpsshim::broker
