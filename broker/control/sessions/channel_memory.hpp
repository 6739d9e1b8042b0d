// SPDX-License-Identifier: Apache-2.0
// What the control process makes for a session's channel (proto/channel.hpp) and keeps of it: the files of channel and fences, the two
// doorbells, and its own mapping of the header page, in which it tells the client that the session moved or failed.
// The client can write that page at any time; nothing is decided by what is read from it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "proto/channel.hpp"
#include "proto/handshake.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class ChannelMemory {
 public:
  // nullopt (errno) if the system has no more files or memory.
  [[nodiscard]] static std::optional<ChannelMemory> make(std::uint64_t session, std::uint64_t epoch,
                                                         std::uint32_t layout_minor = proto::kLayoutMinor);

  // From a hand-over, with the descriptors in the order of fds(). nullopt: they are not what they should be.
  [[nodiscard]] static std::optional<ChannelMemory> adopt(std::array<proto::FileDescriptor, 4> fds);

  [[nodiscard]] proto::LentFds<proto::Attached> lent() const {
    return {
        .channel = channel_.get(), .fences = fences_.get(), .ring_doorbell = ring_doorbell_.get(), .completion_doorbell = completion_doorbell_.get()};
  }
  // The same for a hand-over, in the order of adopt().
  [[nodiscard]] std::array<int, 4> fds() const {
    return {channel_.get(), fences_.get(), ring_doorbell_.get(), completion_doorbell_.get()};
  }
  void write_header(std::uint64_t session, std::uint64_t epoch, std::uint32_t layout_minor);
  // Wakes whoever sleeps for an answer, a fence or room; one that was about to sleep looks at its session's state after 20 ms.
  void tell_moved();
  void tell_on_trial();
  void tell_failed(std::uint32_t error);
  // Whether there is text of its kernels for it to take.
  void tell_output(bool is_waiting);
  // What part of the multiprocessors it has from now on, in hundredths of a percent, for what it answers by itself.
  void tell_thread_percentage(std::uint32_t percentage) const;
  // Advice, for what hurts that client alone if it lies: the error an executor ended the session with, 0 if none.
  [[nodiscard]] std::uint32_t failure() const;
  [[nodiscard]] bool is_unused() const;  // no record was ever published
  [[nodiscard]] std::uint64_t written_bytes() const;  // of records, as the client says

 private:
  void tell_gone(proto::SessionState state);
  ChannelMemory() = default;
  [[nodiscard]] proto::ChannelHeader& header() const;
  void wake_client() const;

  proto::FileDescriptor channel_;
  proto::FileDescriptor fences_;
  proto::FileDescriptor ring_doorbell_;
  proto::FileDescriptor completion_doorbell_;
  proto::Mapping page_;
};

}  // namespace mpsshim::broker::control
