// SPDX-License-Identifier: Apache-2.0
// The broker's figures over HTTP, to readers of all kinds: the loop that serves them is everybody's and waits for none.
#include "broker/control/server/metrics_server.hpp"

#include <vector>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/catch.hpp"
#include "tests/unit/control/support/turns.hpp"

using namespace mpsshim;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr char kRequest[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

class Figures {
 public:
  explicit Figures(std::string text) : text_(std::move(text)), path_("/tmp/mpsshim-figures-" + std::to_string(getpid()) + ".sock") {
    std::string why;
    server = std::make_unique<MetricsServer>(loop, *parse_metrics_address(path_, false, why), [this](std::uint64_t dropped) {
      ++made;
      return text_ + std::to_string(dropped) + "\n";
    });
    INFO(why);
    REQUIRE(server->listen(why));
  }
  proto::FileDescriptor call() const {
    proto::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path_.copy(name.sun_path, sizeof name.sun_path - 1);
    REQUIRE(connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
    return socket;
  }
  static void say(const proto::FileDescriptor& socket, std::string_view text) {
    REQUIRE(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  // Until the other side has closed.
  std::string hear(const proto::FileDescriptor& socket) {
    std::string heard;
    REQUIRE(turn_until(loop, [&] {
      std::vector<char> buffer(1 << 16);
      ssize_t bytes = 0;
      while ((bytes = recv(socket.get(), buffer.data(), buffer.size(), 0)) > 0) heard.append(buffer.data(), static_cast<std::size_t>(bytes));
      return bytes == 0 || (errno != EAGAIN);
    }));
    return heard;
  }
  std::string ask(std::string_view request) {
    const proto::FileDescriptor socket = call();
    say(socket, request);
    return hear(socket);
  }

  EventLoop loop;
  std::unique_ptr<MetricsServer> server;
  unsigned made = 0;

 private:
  const std::string text_;
  const std::string path_;
};

}  // namespace

TEST_CASE("metrics: an answer is whole, has its length, and the connection ends behind it") {
  Figures figures(std::string(3'000'000, 'x'));
  const std::string heard = figures.ask(kRequest);
  const std::size_t body = heard.find("\r\n\r\n") + 4;
  CHECK(heard.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 3000002\r\n"));
  CHECK(heard.size() - body == 3'000'002);
  CHECK(heard.ends_with("x0\n"));
  const std::string head = figures.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
  CHECK(head.find("Content-Length: 3000002\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(turn_until(figures.loop, [&] { return figures.server->connections() == 0; }));
  CHECK(figures.server->dropped() == 0);
}

TEST_CASE("metrics: requests that are none are answered with their status") {
  Figures figures("x");
  CHECK(figures.ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
  CHECK(figures.ask("POST /metrics HTTP/1.1\r\n\r\n").find("\r\nAllow: GET, HEAD\r\n") != std::string::npos);
  CHECK(figures.ask("\x16\x03\x01").starts_with("HTTP/1.1 400 Bad Request\r\n"));
  CHECK(figures.ask("GET " + std::string(100'000, '/')).starts_with("HTTP/1.1 414 URI Too Long\r\n"));
  CHECK(figures.made == 0);
}

TEST_CASE("metrics: a request comes byte by byte, others are answered meanwhile, and what was asked at once is made once") {
  Figures figures("x");
  const proto::FileDescriptor slow = figures.call();
  for (const char c : std::string_view(kRequest).substr(0, sizeof kRequest - 2)) {
    Figures::say(slow, std::string(1, c));
    figures.loop.turn(0);
  }
  for (int i = 0; i < 5; ++i) CHECK(figures.ask(kRequest).starts_with("HTTP/1.1 200"));
  Figures::say(slow, "\n");
  CHECK(figures.hear(slow).starts_with("HTTP/1.1 200"));
  CHECK(figures.made <= 3);  // within a tenth of a second
}

TEST_CASE("metrics: the oldest of too many goes, and who comes is served") {
  Figures figures("x");
  std::vector<proto::FileDescriptor> silent;
  for (std::size_t i = 0; i < 3 * MetricsServer::kMostConnections; ++i) {
    silent.push_back(figures.call());
    figures.loop.turn(0);
    figures.loop.turn(0);
  }
  CHECK(figures.server->connections() <= MetricsServer::kMostConnections);
  CHECK(figures.ask(kRequest).starts_with("HTTP/1.1 200"));
  CHECK(figures.server->dropped() >= 2 * MetricsServer::kMostConnections);
}

TEST_CASE("metrics: who asks nothing, or does not read, is dropped after a while, and costs nobody a turn") {
  Figures figures(std::string(30'000'000, 'x'));
  const proto::FileDescriptor silent = figures.call(), deaf = figures.call();
  Figures::say(deaf, kRequest);
  REQUIRE(turn_until(figures.loop, [&] { return figures.made == 1; }));
  const auto began = EventLoop::Clock::now();
  bool is_fired = false;
  const EventLoop::Timer other = figures.loop.after(std::chrono::milliseconds(50), [&] { is_fired = true; });
  REQUIRE(turn_until(figures.loop, [&] { return is_fired; }));
  CHECK(EventLoop::Clock::now() - began < std::chrono::milliseconds(1'000));
  CHECK(figures.server->connections() == 2);
  REQUIRE(turn_until(figures.loop, [&] { return figures.server->connections() == 0; }));
  CHECK(EventLoop::Clock::now() - began < 2 * MetricsServer::kTimeLimit);
  CHECK(figures.server->dropped() == 2);
}

TEST_CASE("metrics: who hangs up in the middle of an answer leaves nothing behind") {
  Figures figures(std::string(30'000'000, 'x'));
  for (int i = 0; i < 50; ++i) {
    const proto::FileDescriptor socket = figures.call();
    Figures::say(socket, kRequest);
    for (int turns = 0; turns < 3; ++turns) figures.loop.turn(0);
  }
  CHECK(turn_until(figures.loop, [&] { return figures.server->connections() == 0; }));
  CHECK(figures.ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
}
