// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/event_loop.hpp"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using mpsshim::broker::control::EventLoop;
using mpsshim::proto::FileDescriptor;

TEST_CASE("a watch may end itself, and another of the same turn") {
  EventLoop loop;
  const FileDescriptor first(eventfd(1, EFD_CLOEXEC));
  const FileDescriptor second(eventfd(1, EFD_CLOEXEC));
  EventLoop::Watch watch_first;
  EventLoop::Watch watch_second;
  int calls = 0;
  const auto end_both = [&](EventLoop::Events) {
    ++calls;
    watch_first.reset();
    watch_second.reset();
  };
  watch_first = loop.watch(first.get(), EPOLLIN, end_both);
  watch_second = loop.watch(second.get(), EPOLLIN, end_both);
  loop.turn(0);
  loop.turn(0);
  CHECK(calls == 1);
}

TEST_CASE("timers run in order of time, and not once they are reset") {
  EventLoop loop;
  std::string order;
  auto late = loop.after(std::chrono::milliseconds(10), [&] { order += 'b'; });
  auto early = loop.after(std::chrono::milliseconds(2), [&] { order += 'a'; });
  auto never = loop.after(std::chrono::milliseconds(5), [&] { order += 'x'; });
  never.reset();
  const auto end = EventLoop::Clock::now() + std::chrono::milliseconds(500);
  while (order.size() < 2 && EventLoop::Clock::now() < end) loop.turn(-1);
  CHECK(order == "ab");
}

TEST_CASE("what a deferred task defers runs in a later turn") {
  EventLoop loop;
  int slices = 0;
  std::function<void()> step = [&] {
    if (++slices < 3) loop.defer(step);
  };
  loop.defer(step);
  loop.turn(0);
  CHECK(slices == 1);
  loop.turn(0);
  loop.turn(0);
  CHECK(slices == 3);
}

TEST_CASE("a watch on what cannot be watched is empty") {
  EventLoop loop;
  CHECK_FALSE(loop.watch(-1, EPOLLIN, [](EventLoop::Events) {}));
}

TEST_CASE("a turn that holds everybody up is told, with how long it computed") {
  using namespace mpsshim::broker;
  const mpsshim::test::TemporaryFolder folder;
  const std::string path = folder.path() / "log";
  REQUIRE(open_log({.path = path, .identity = "Test", .to_standard_error = false, .least = LogLevel::info}));
  EventLoop loop;
  loop.defer([] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  loop.turn(0);
  loop.defer([] { std::this_thread::sleep_for(std::chrono::milliseconds(1'100)); });
  loop.turn(0);
  open_log({.path = "", .identity = "Broker", .to_standard_error = true, .least = LogLevel::info});
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string said = text.str();
  INFO(said);
  unsigned waited_ms = 0, computed_ms = 0;
  const std::size_t at = said.find("Everybody waited ");
  REQUIRE(at != std::string::npos);
  CHECK(said.find("Everybody waited ", at + 1) == std::string::npos);
  REQUIRE(std::sscanf(said.c_str() + at, "Everybody waited %u ms for the control process, which computed for %u ms", &waited_ms, &computed_ms) == 2);
  CHECK(waited_ms >= 1'100);
  CHECK(computed_ms < 500);
}
