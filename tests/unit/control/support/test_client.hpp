// SPDX-License-Identifier: Apache-2.0
// A client of the control process, and what it sees in its channel. It is this process, so its pidfd is our own unless a test brings another.
#pragma once

#include <array>
#include <cstring>
#include <span>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "broker/control/base/event_loop.hpp"
#include "proto/channel.hpp"
#include "proto/handshake.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/control/support/turns.hpp"

namespace mpsshim::broker::control::testing {

class TestClient {
 public:
  TestClient(EventLoop& loop, proto::Socket socket) : loop_(loop), socket_(std::move(socket)) { socket_.set_blocking(false); }

  template <typename Message>
  void send(const Message& message, std::span<const int> with = {}) {
    REQUIRE(proto::send_message(socket_, message, with) == proto::SocketStatus::ok);
  }
  void send_bytes(std::size_t count) {
    const std::vector<std::byte> bytes(count);
    REQUIRE(socket_.send(bytes) == proto::SocketStatus::ok);
  }
  // The answer, if it is there. `fds` holds what came with it.
  template <typename Message>
  bool poll(Message& message) {
    std::array<std::byte, proto::kMaxMessageBytes> buffer;
    std::size_t bytes = 0;
    if (socket_.receive(buffer, bytes, fds) != proto::SocketStatus::ok) return false;
    REQUIRE(bytes == sizeof message);
    std::memcpy(&message, buffer.data(), bytes);
    return true;
  }
  template <typename Answer>
  Answer await();
  template <typename Answer, typename Message>
  Answer ask(const Message& message, std::span<const int> with = {}) {
    send(message, with);
    return await<Answer>();
  }
  proto::Welcome hello();
  bool is_closed();  // by the broker, within a moment
  void hang_up() { socket_.reset(); }

  proto::ReceivedFds fds;

 private:
  EventLoop& loop_;
  proto::Socket socket_;
};

template <typename Answer>
Answer TestClient::await() {
  Answer answer;
  REQUIRE(turn_until(loop_, [&] { return poll(answer); }));
  return answer;
}

inline proto::Welcome TestClient::hello() {
  const proto::FileDescriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const int fd = self.get();
  return ask<proto::Welcome>(proto::Hello{}, {&fd, 1});
}

inline bool TestClient::is_closed() {
  return turn_until(
      loop_, [&] { return socket_.peer_has_hung_up(); }, 500);
}

// What a client sees in its channel.
inline proto::Mapping map_header(const proto::ReceivedFds& fds) {
  return proto::Mapping::map(fds.fds[0], 0, proto::kPageBytes, proto::Access::read_write);
}
inline proto::ChannelHeader& header_of(const proto::Mapping& page) { return *reinterpret_cast<proto::ChannelHeader*>(page.data()); }
// Its word for what has become of the session.
inline std::uint32_t state_in(const proto::Mapping& page) { return header_of(page).session_state; }
inline constexpr auto kFailed = static_cast<std::uint32_t>(proto::SessionState::failed);
inline constexpr auto kMoved = static_cast<std::uint32_t>(proto::SessionState::moved);
inline constexpr auto kActive = static_cast<std::uint32_t>(proto::SessionState::active);

}  // namespace mpsshim::broker::control::testing
