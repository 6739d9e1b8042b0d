// SPDX-License-Identifier: Apache-2.0
// The descriptors of a message by the names that proto/spec/messages.toml gives them: lent by whoever sends it, taken by whoever receives it.
// Their order in the packet stands here and nowhere else. Used by both links, of clients and of executors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "proto/message.hpp"
#include "proto/socket.hpp"

namespace mpsshim::proto {

template <typename Message>
using LentFds = DescriptorsOf<Message, int>;  // -1: missing
template <typename Message>
using TakenFds = DescriptorsOf<Message, FileDescriptor>;

// A structure that has arrived, and its descriptors.
template <typename Message>
struct Received {
  Message message;
  TakenFds<Message> fds;
};

// What is lent, as it goes into a packet: an optional one that is missing ends it.
class LentList {
 public:
  LentList() = default;
  // `fds`: list() of the message's LentFds.
  LentList(const MessageRow& row, std::span<int* const> fds) : is_optional_(row.least_descriptors == 0) {
    for (const int* const fd : fds) {
      if (count_ >= row.least_descriptors && *fd < 0) break;
      fds_[count_++] = *fd;
    }
  }
  [[nodiscard]] std::span<const int> in_order() const { return std::span(fds_).first(count_); }
  [[nodiscard]] bool is_optional() const { return is_optional_; }  // the message may go without any

 private:
  bool is_optional_ = true;
  std::array<int, kMaxMessageFds> fds_;
  std::size_t count_ = 0;
};

// What has come with a message that fits its row, by name; those that are missing are invalid.
template <typename Message>
[[nodiscard]] TakenFds<Message> take_fds(ReceivedFds& received) {
  TakenFds<Message> fds;
  std::size_t next = 0;
  for (FileDescriptor* fd : fds.list()) *fd = std::move(received.fds[next++]);
  received.count = 0;
  return fds;
}

}  // namespace mpsshim::proto
