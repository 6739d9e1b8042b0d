// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/metrics_server.hpp"

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/control/server/http_request.hpp"
#include "broker/control/server/metrics_text.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::milliseconds kPause{100};             // without descriptors
constexpr std::size_t kMostAtOnce = std::size_t{64} * 1024;  // read or sent in one turn of the loop: others have theirs

bool would_block() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

MetricsServer::MetricsServer(EventLoop& loop, MetricsAddress address, std::function<std::string(std::uint64_t dropped)> make)
    : loop_(loop), address_(std::move(address)), make_(std::move(make)) {}

MetricsServer::~MetricsServer() {
  if (listener_.valid() && !address_.path.empty()) unlink(address_.path.c_str());
}

bool MetricsServer::listen(std::string& why) {
  listener_ = listen_at(address_, why);
  if (!listener_.valid()) return false;
  listener_watch_ = loop_.watch(listener_.get(), EPOLLIN, [this](EventLoop::Events) { accept(); });
  log_info("Figures for Prometheus are at {}{}.", address_.text, address_.is_loopback() ? "" : ", for other machines as well");
  return true;
}

void MetricsServer::accept() {
  proto::FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) {
    if (would_block() || errno == ECONNABORTED) return;
    listener_watch_.set_events(0);  // without a pause the loop would spin on whoever waits
    pause_ = loop_.after(kPause, [this] { listener_watch_.set_events(EPOLLIN); });
    return;
  }
  if (connections_.size() >= kMostConnections) drop(connections_.begin()->first);
  const std::uint64_t id = next_id_++;
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  connection.watch = loop_.watch(connection.socket.get(), EPOLLIN, [this, id](EventLoop::Events) { on_events(id); });
  connection.limit = loop_.after(kTimeLimit, [this, id] { drop(id); });
}

void MetricsServer::on_events(std::uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (connection.head.empty() || connection.is_answered ? !read(connection) : !send_more(connection)) end(id);
}

// False: it is over.
bool MetricsServer::read(Connection& connection) {
  std::array<char, kMostRequestBytes> buffer;
  for (std::size_t taken = 0; taken < kMostAtOnce;) {
    const ssize_t bytes = recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
    if (bytes == 0) return false;
    if (bytes < 0) return would_block();
    taken += static_cast<std::size_t>(bytes);
    if (connection.is_answered) continue;
    connection.request.append(buffer.data(), static_cast<std::size_t>(bytes));
    if (judge_request(connection.request).status != 0) return answer(connection);
  }
  return true;
}

bool MetricsServer::answer(Connection& connection) {
  const HttpVerdict verdict = judge_request(connection.request);
  std::string().swap(connection.request);
  const bool has_figures = verdict.status == 200;
  connection.body = has_figures ? figures() : std::make_shared<const std::string>(fmt::format("{} {}\n", verdict.status, reason_of(verdict.status)));
  connection.head = response_head(verdict.status, has_figures ? kMetricsType : "text/plain; charset=utf-8", connection.body->size());
  if (verdict.is_head) connection.body = std::make_shared<const std::string>();
  return send_more(connection);
}

bool MetricsServer::send_more(Connection& connection) {
  const std::size_t all = connection.head.size() + connection.body->size();
  for (std::size_t begin = connection.sent; connection.sent < all && connection.sent - begin < kMostAtOnce;) {
    const bool in_head = connection.sent < connection.head.size();
    const std::string_view whole = in_head ? std::string_view(connection.head) : std::string_view(*connection.body);
    const std::string_view part = whole.substr(in_head ? connection.sent : connection.sent - connection.head.size(), kMostAtOnce);
    const ssize_t bytes = send(connection.socket.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT | (in_head ? MSG_MORE : 0));
    if (bytes < 0 && !would_block()) return false;
    if (bytes < 0) break;
    connection.sent += static_cast<std::size_t>(bytes);
  }
  connection.is_answered = connection.sent == all;
  connection.watch.set_events(connection.is_answered ? EPOLLIN : EPOLLOUT);
  // Closed at once, with bytes of it unread, the other side could lose the end of the answer.
  if (connection.is_answered) shutdown(connection.socket.get(), SHUT_WR);
  return true;
}

MetricsServer::Text MetricsServer::figures() {
  const auto now = EventLoop::Clock::now();
  if (figures_ == nullptr || now - made_at_ >= kFreshness) {
    figures_ = std::make_shared<const std::string>(make_(dropped_));
    made_at_ = now;
  }
  return figures_;
}

void MetricsServer::end(std::uint64_t id) { connections_.erase(id); }

void MetricsServer::drop(std::uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (!found->second.is_answered) ++dropped_;
  connections_.erase(found);
}

}  // namespace mpsshim::broker::control
