// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/sessions/arrival_forecast.hpp"

#include "tests/support/catch.hpp"

namespace mpsshim::broker {

namespace {

using std::chrono::microseconds;
using Clock = ArrivalForecast::Clock;

struct Client {
  // It falls quiet, and comes back after the pause.
  void come_after(microseconds pause) {
    forecast.fall_quiet(now);
    now += pause;
    (void)forecast.come(now);
  }
  [[nodiscard]] std::optional<ArrivalForecast::Window> fall_quiet() {
    forecast.fall_quiet(now);
    return forecast.next();
  }
  ArrivalForecast forecast;
  Clock::time_point now{std::chrono::hours(1)};
};

}  // namespace

TEST_CASE("a client that comes at a pace is expected when it comes") {
  const microseconds pause(GENERATE(120, 260, 1'060, 10'090, 100'120));
  Client client;
  for (int i = 0; i < 8; ++i) {
    CHECK_FALSE(client.fall_quiet());
    client.come_after(pause + microseconds(i % 3));
  }
  const auto window = client.fall_quiet();
  REQUIRE(window);
  CHECK(window->from <= client.now + pause - microseconds(8));
  CHECK(window->until >= client.now + pause + microseconds(10));
  CHECK(window->from >= client.now + pause - microseconds(140));
  CHECK(window->until <= client.now + pause + microseconds(320));
}

TEST_CASE("one pause that was interrupted does no harm, several do") {
  Client client;
  for (int i = 0; i < 8; ++i) client.come_after(microseconds(1'000));
  client.come_after(microseconds(40'000));
  CHECK(client.fall_quiet());
  (void)client.forecast.come(client.now + microseconds(1'000));
  client.come_after(microseconds(40'000));
  CHECK_FALSE(client.fall_quiet());
}

TEST_CASE("pauses that differ make no forecast, and those within a step do not count") {
  Client client;
  for (int i = 0; i < 32; ++i) client.come_after(microseconds(i % 2 == 0 ? 300 : 2'000));
  CHECK_FALSE(client.fall_quiet());
  client = Client{};
  for (int i = 0; i < 32; ++i) client.come_after(microseconds(i % 2 == 0 ? 3 : 2'000));
  CHECK(client.fall_quiet());
}

TEST_CASE("looking out costs a share of the pause at most") {
  Client client;
  for (int i = 0; i < 8; ++i) client.come_after(microseconds(100'000 + 700 * i));
  const auto window = client.fall_quiet();
  REQUIRE(window);
  CHECK(window->until - window->from <= microseconds(100'000) / 10);
  Client uneven;
  for (int i = 0; i < 8; ++i) uneven.come_after(microseconds(1'000 + 30 * i));
  CHECK_FALSE(uneven.fall_quiet());
}

TEST_CASE("who is at work is not expected") {
  Client client;
  for (int i = 0; i < 8; ++i) client.come_after(microseconds(1'000));
  CHECK_FALSE(client.forecast.is_quiet());
  CHECK_FALSE(client.forecast.next());
  CHECK(client.forecast.come(client.now) == Clock::duration(0));
}

}  // namespace mpsshim::broker
