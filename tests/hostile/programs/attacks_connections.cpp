// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

// As many connections as the broker takes, each greeted.
std::string connect(Hostile& hostile, int count) {
  raise_file_limit();
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    try {
      auto connection = std::make_unique<RawConnection>();
      if (connection->hello().header.status != 0) throw Failure("refused");
      hostile.connections.push_back(std::move(connection));
    } catch (const Failure&) {
      ++refused;
    }
  }
  return "ok " + std::to_string(hostile.connections.size()) + " " + std::to_string(refused);
}

// Connections that never say anything.
std::string silent(Hostile& hostile, int count) {
  raise_file_limit();
  int hung_up = 0;
  for (int i = 0; i < count; ++i) hostile.connections.push_back(std::make_unique<RawConnection>());
  usleep(200'000);
  for (const auto& connection : hostile.connections) hung_up += connection->socket.peer_has_hung_up() ? 1 : 0;
  return "ok " + std::to_string(hung_up);
}

// Connections to the commands' socket that never ask anything, then nonsense.
std::string commands(Hostile& hostile, int count) {
  raise_file_limit();
  const std::string path = std::string(std::getenv("CUDA_MPS_PIPE_DIRECTORY")) + "/" + proto::kControlSocketName;
  std::vector<proto::Socket> kept;
  for (int i = 0; i < count; ++i) kept.push_back(proto::Socket::connect_to(path));
  for (proto::Socket& socket : kept) {
    if (!socket.valid() || hostile.random() % 2 == 0) continue;
    std::vector<std::byte> nonsense(hostile.random() % 4000 + 1);
    for (std::byte& byte : nonsense) byte = static_cast<std::byte>(hostile.random());
    (void)socket.send(nonsense);
  }
  return "ok";
}

std::string sessions(Hostile& hostile, int count) {
  for (int i = 0; i < count; ++i) {
    try {
      hostile.more_sessions.push_back(std::make_unique<RawSession>(false));
    } catch (const Failure& refused) {
      return "ok " + std::to_string(hostile.more_sessions.size()) + " " + refused.what();
    }
  }
  return "ok " + std::to_string(hostile.more_sessions.size());
}

// Sessions opened and left, one after another.
std::string churn(Hostile&, int duration_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned made = 0, refused = 0;
  while (Clock::now() < end) {
    try {
      RawSession session(false);
      ++made;
    } catch (const Failure&) {
      ++refused;  // those it left are still being taken down
    }
  }
  return "ok " + std::to_string(made) + " " + std::to_string(refused);
}

std::string command(Hostile&, const std::string& line) {
  const auto socket = proto::Socket::connect_to(std::string(std::getenv("CUDA_MPS_PIPE_DIRECTORY")) + "/" + proto::kControlSocketName);
  if (!socket.valid()) return "ok refused";  // by the socket file's permissions
  if (socket.send(std::as_bytes(std::span(line))) != proto::SocketStatus::ok) return "ok refused";
  std::vector<std::byte> answer(proto::kMaxMessageBytes);
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  if (!socket.wait_readable(kAnswerLimitMs) || socket.receive(answer, bytes, fds) != proto::SocketStatus::ok) return "no answer to the command";
  return std::string(reinterpret_cast<const char*>(answer.data()), bytes).starts_with("ok") ? "ok done" : "ok refused";
}

std::string as_user(Hostile&, unsigned uid) {
  if (setuid(uid) != 0) return std::string("cannot become another user: ") + std::strerror(errno);
  RawConnection connection;
  const proto::Welcome welcome = connection.hello();
  return "ok " + std::to_string(welcome.header.status) + " " + std::to_string(connection.fds.count);
}

}  // namespace mpsshim::test
