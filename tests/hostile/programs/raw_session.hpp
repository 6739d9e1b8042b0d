// SPDX-License-Identifier: Apache-2.0
// A client that speaks the protocol by itself, from the headers of proto/: the handshake, the channel, the ring. It checks nothing, so it can
// send whatever a client must not. One thread.
// What the broker does not give (a refusal, a hang-up, no answer in time) is thrown as Failure.
#pragma once

#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gen/records.hpp"
#include "proto/client_requests.hpp"
#include "proto/ring_producer.hpp"
#include "proto/segment.hpp"
#include "proto/socket.hpp"

namespace mpsshim::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr int kAnswerLimitMs = 20'000;

class RawConnection {
 public:
  RawConnection();  // to the broker in $CUDA_MPS_PIPE_DIRECTORY; throws where there is none

  proto::Welcome hello();
  // One request and its answer, whose descriptors are then in `fds`.
  template <typename Answer, typename Message>
  Answer ask(const Message& message, std::span<const int> with = {}) {
    if (proto::send_message(socket, message, with) != proto::SocketStatus::ok) throw Failure("the broker takes no request");
    Answer answer;
    receive(std::as_writable_bytes(std::span(&answer, 1)));
    return answer;
  }

  proto::Socket socket;
  proto::ReceivedFds fds;

 private:
  void receive(std::span<std::byte> answer);
};

struct RawReply {
  std::uint32_t status = 0;
  std::vector<std::byte> payload;
  template <typename Body>
  [[nodiscard]] Body body() const {
    Body result{};
    std::memcpy(&result, payload.data(), std::min(sizeof result, payload.size()));
    return result;
  }
};

class RawSession {
 public:
  // Connected, greeted, attached, mapped. A process has so many sessions at a time, those that are still being taken down included: one that
  // `insists` asks again.
  explicit RawSession(bool insists = true, std::uint32_t device = 0);

  [[nodiscard]] proto::ChannelHeader& header() { return *reinterpret_cast<proto::ChannelHeader*>(control.data()); }
  [[nodiscard]] proto::FenceWord& fence(std::uint32_t index) { return reinterpret_cast<proto::FenceWord*>(fences.data())[index]; }
  [[nodiscard]] bool is_active() { return header().session_state.load() == static_cast<std::uint32_t>(proto::SessionState::active); }
  void ring_doorbells() const;

  // As a correct client writes it. False once the session has ended; throws where the ring stays full.
  template <typename Record>
  bool post(const Record& record, proto::StreamId stream = proto::kNullStream, std::span<const std::byte> trailing = {},
            std::uint16_t slot = proto::kNoReplySlot) {
    std::span<const std::byte> body;
    if constexpr (Record::kBodyBytes > 0) body = std::as_bytes(std::span(&record, 1));
    return post_raw(static_cast<std::uint16_t>(Record::kId), stream, body, trailing, slot);
  }
  bool post_raw(std::uint16_t id, proto::StreamId stream, std::span<const std::byte> body, std::span<const std::byte> trailing, std::uint16_t slot);
  template <typename Record>
  RawReply call(const Record& record, std::span<const std::byte> trailing = {}, std::uint16_t slot = 0) {
    arm(slot);
    if (!post(record, proto::kNullStream, trailing, slot)) throw Failure("the session has ended");
    return wait(slot);
  }
  void arm(std::uint16_t slot);
  RawReply wait(std::uint16_t slot);
  void await_fence(std::uint32_t value, std::uint32_t index = 0);

  // A memory file of the broker's, known to the executor; its id.
  std::uint64_t make_segment(proto::SegmentPurpose purpose, std::uint64_t address, std::uint64_t size_bytes);
  // The id of an image of that content.
  std::uint64_t make_image(const std::string& content);

  RawConnection connection;
  proto::Attached attached;
  proto::FileDescriptor channel_file;
  proto::FileDescriptor fence_file;
  proto::FileDescriptor ring_doorbell;
  proto::FileDescriptor completion_doorbell;
  proto::Mapping control;
  proto::Mapping ring;
  proto::Mapping fences;
  proto::RingProducer producer;
  std::vector<proto::FileDescriptor> segment_files;

 private:
  proto::ReplySlot& slot_of(std::uint16_t slot) {
    return *reinterpret_cast<proto::ReplySlot*>(control.data() + proto::kReplyOffset + slot * proto::kReplySlotBytes);
  }
};

}  // namespace mpsshim::test
