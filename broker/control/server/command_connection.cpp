// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/command_connection.hpp"

#include <algorithm>
#include <array>

#include <unistd.h>

#include "broker/control/base/complaints.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kCommandLimit{10'000};  // for the line to come

// One line of the log, whatever was sent.
std::string printable(std::string text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() > kLongest) text.resize(kLongest);
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

CommandConnection::CommandConnection(EventLoop& loop, const Commands& commands, proto::Socket socket, std::function<void()> on_end)
    : commands_(commands), socket_(std::move(socket)), on_end_(std::move(on_end)) {
  watch_ = loop.watch(socket_.fd(), EPOLLIN | EPOLLRDHUP, [this](EventLoop::Events) { on_events(); });
  deadline_ = loop.after(kCommandLimit, [this] {
    watch_.reset();
    on_end_();
  });
}

void CommandConnection::on_events() {
  std::array<std::byte, kMaxCommandBytes> buffer;
  std::size_t bytes = 0;
  bool carries_fds = false;
  const proto::SocketStatus status = socket_.peek(buffer, bytes, carries_fds);
  if (status == proto::SocketStatus::would_block) return;
  watch_.reset();
  deadline_.reset();
  if (status != proto::SocketStatus::ok || carries_fds) return on_end_();
  socket_.drop();
  std::string line(reinterpret_cast<const char*>(buffer.data()), bytes);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\0')) line.pop_back();
  const auto reply = [this, line, alive = std::weak_ptr(alive_)](const Commands::Result& result) {
    if (alive.expired()) return;
    pending_.clear();
    answer(line, result);
    on_end_();
  };
  const uid_t uid = socket_.peer().uid;
  if (uid != geteuid() && uid != 0) return reply({false, "this broker belongs to another user"});
  pending_ = line;
  commands_.execute(line, reply, socket_.peer().pid);
}

void CommandConnection::answer(const std::string& line, const Commands::Result& result) const {
  const proto::PeerCredentials peer = socket_.peer();
  // Questions are asked all the time by scripts; what changes something, or fails, is logged.
  if (!result.ok) {
    complain("Command \"{}\" from pid {} (uid {}): {}.", printable(line), peer.pid, peer.uid, printable(result.text));
  } else if (Commands::is_action(line)) {
    log_info("Command \"{}\" from pid {} (uid {}): done.", line, peer.pid, peer.uid);
  } else {
    log_debug("Command \"{}\" from pid {} (uid {}): done.", line, peer.pid, peer.uid);
  }
  answer_on(socket_, result);
}

void CommandConnection::answer_on(const proto::Socket& socket, const Commands::Result& result) {
  const std::string text = (result.ok ? "ok\n" : "error\n") + result.text;
  for (std::size_t sent = 0; sent < text.size(); sent += proto::kMaxMessageBytes) {
    const std::string_view part = std::string_view(text).substr(sent, proto::kMaxMessageBytes);
    if (socket.send(std::as_bytes(std::span(part.data(), part.size()))) != proto::SocketStatus::ok) return;  // it does not read: its loss
  }
}

}  // namespace mpsshim::broker::control
