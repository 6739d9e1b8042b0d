// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/executor_link.hpp"

#include <cerrno>
#include <cstring>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr int kPacketsAVisit = 64;  // then other clients have their turn
constexpr std::chrono::milliseconds kPacketAgain{2};
}

ExecutorLink::ExecutorLink(EventLoop& loop, proto::Socket socket, Arrival on_arrival, std::function<void()> on_closed)
    : loop_(loop), socket_(std::move(socket)), on_arrival_(std::move(on_arrival)), on_closed_(std::move(on_closed)) {
  socket_.set_blocking(false);
  watch_ = loop.watch(socket_.fd(), EPOLLIN, [this](EventLoop::Events events) { on_events(events); });
}

proto::SocketStatus ExecutorLink::try_send(const OutgoingMessage& message, std::span<const int> fds) {
  const proto::SocketStatus status = socket_.send(message.bytes(), fds);
  is_short_ = status == proto::SocketStatus::failed && proto::is_shortage(errno);
  return is_short_ ? proto::SocketStatus::would_block : status;
}

void ExecutorLink::send(const OutgoingMessage& message) {
  if (!open_) return;
  if (outgoing_.empty()) {
    const proto::SocketStatus status = try_send(message, message.fds());
    if (status == proto::SocketStatus::ok) return;
    if (status != proto::SocketStatus::would_block) return;  // it is dying; its end is noticed by the pidfd
  }
  Outgoing waiting{message, {}};
  for (const int fd : message.fds()) waiting.fds.push_back(proto::duplicate_of(fd));
  outgoing_.push_back(std::move(waiting));
  await_room();
}

// A socket that would take more may have to wait for others' (is_short_): it says nothing when they are done.
void ExecutorLink::await_room() {
  watch_.set_events(is_short_ ? EPOLLIN : EPOLLIN | EPOLLOUT);
  if (is_short_) again_ = loop_.after(kPacketAgain, [this] { flush(); });
}

void ExecutorLink::flush() {
  while (!outgoing_.empty()) {
    std::vector<int> fds;
    for (const proto::FileDescriptor& fd : outgoing_.front().fds) fds.push_back(fd.get());
    if (try_send(outgoing_.front().message, fds) == proto::SocketStatus::would_block) return await_room();
    outgoing_.pop_front();
  }
  watch_.set_events(EPOLLIN);
}

bool ExecutorLink::receive_one() {
  if (!open_) return false;
  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  switch (socket_.receive(buffer, bytes, fds)) {
    case proto::SocketStatus::ok: break;
    case proto::SocketStatus::would_block: return false;
    case proto::SocketStatus::closed:
    case proto::SocketStatus::truncated:
    case proto::SocketStatus::failed: close(); return false;
  }
  const auto packet = std::span<const std::byte>(buffer).first(bytes);
  ReceivedMessage received;
  const proto::Misfit misfit = received.assign(packet, fds, proto::MessageDirection::from_executor);
  if (misfit == proto::Misfit::fits) {
    on_arrival_(received);
    return true;
  }
  const bool is_broken = misfit == proto::Misfit::size;
  log_error("An executor sent {} of {} bytes, which {}; {}.", name_in(packet), bytes, proto::words_for(misfit),
            is_broken ? "the link to it is closed" : "it is ignored");
  if (is_broken) close();
  return !is_broken;
}

void ExecutorLink::on_events(EventLoop::Events events) {
  if ((events & EPOLLOUT) != 0) flush();
  for (int i = 0; i < kPacketsAVisit && receive_one(); ++i) {
  }
}

void ExecutorLink::drain() {
  while (receive_one()) {
  }
}

void ExecutorLink::close() {
  if (!open_) return;
  open_ = false;
  watch_.reset();
  again_.reset();
  on_closed_();
}

}  // namespace mpsshim::broker::control
