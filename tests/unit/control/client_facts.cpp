// SPDX-License-Identifier: Apache-2.0
// What is counted of sessions: from their beginning to their end, through whatever executors they go.
#include "broker/control/server/client_facts.hpp"

#include <thread>

#include "broker/control/server/cells.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr std::uint64_t kMs = 1'000'000;  // in nanoseconds

}  // namespace

TEST_CASE("facts: what an executor counts is seen at once, of each session its own") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  proto::Attached one, two;
  const TestClient first = broker.attach(&one), second = broker.attach(&two);
  broker.executor().counts(one.session).gpu_ns = 1'500 * kMs;
  broker.executor().counts(one.session).launches = 12;
  broker.executor().counts(one.session).waits = 31;
  broker.executor().counts(one.session).wait_ns = 2'300 * kMs;
  broker.executor().set_progress(3, one.session, 10, 4);
  broker.executor().set_progress(4, one.session, 2, UINT32_MAX);  // across the end of numbers
  broker.executor().set_progress(5, two.session, 7, 7);
  const auto facts = client_facts(broker.manager, nullptr);
  REQUIRE(facts.size() == 2);
  CHECK(facts[0].session->id == one.session);
  REQUIRE(facts[0].counts);
  CHECK(facts[0].counts->gpu_ns == 1'500 * kMs);
  CHECK(facts[0].counts->launches == 12);
  CHECK(facts[0].in_flight == 9);
  REQUIRE(facts[1].counts);
  CHECK(facts[1].counts->gpu_ns == 0);
  CHECK(facts[1].counts->launches == 0);
  CHECK(facts[1].in_flight == 0);
  const std::string json = console.ok("ps --json");
  CHECK(json.find(R"("gpu_time_us":1500000,"launches":12,"waits":31,"wait_time_us":2300000,"in_flight":9)") != std::string::npos);
  const std::string table = console.ok("ps -l");
  for (const char* shown : {" AGE ", " GPU-TIME ", " LAUNCHES ", " WAITS ", " WAITED ", " IN-FLIGHT ", " 1.5s ", " 12 ", " 31 ", " 2.3s ", " 9 "})
    CHECK(table.find(shown) != std::string::npos);
  CHECK(console.ok("ps").find("GPU-TIME") == std::string::npos);
}

TEST_CASE("facts: a stream in the pool, and one that another session has meanwhile, is no work in flight") {
  ControlFixture broker;
  broker.serve();
  proto::Attached one;
  const TestClient client = broker.attach(&one);
  broker.executor().set_progress(3, 0, 10, 4);
  broker.executor().set_progress(4, one.session, 4, 10);
  CHECK(client_facts(broker.manager, nullptr).at(0).in_flight == 0);
}

TEST_CASE("facts: counts go on in the next executor where they were, and end with the session") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  {
    TestClient client = broker.attach(&attached);
    broker.executor().counts(attached.session).gpu_ns = 20 * kMs;
    broker.executor().die();
    ExecutorPeer& next = broker.next_life(2);
    CHECK(client_facts(broker.manager, nullptr).at(0).counts->gpu_ns == 20 * kMs);
    client.send(proto::Attach{});
    next.open_session();
    CHECK(client.await<proto::Attached>().session == attached.session);
    next.counts(attached.session).gpu_ns += 5 * kMs;
    CHECK(client_facts(broker.manager, nullptr).at(0).counts->gpu_ns == 25 * kMs);
  }
  REQUIRE(turn_until(broker.loop, [&] {
    if (auto message = broker.executor().receive(); message && message->is<message::SessionClose>()) {
      broker.executor().send(message::SessionClosed{.session = attached.session});
    }
    return !broker.has_session(attached.session);
  }));
  const TestClient later = broker.attach();
  CHECK(client_facts(broker.manager, nullptr).at(0).counts->gpu_ns == 0);
}

TEST_CASE("facts: a client is as old as its session, not as its executor") {
  ControlFixture broker;
  broker.serve();
  const TestClient client = broker.attach();
  const auto before = client_facts(broker.manager, nullptr).at(0).age;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  broker.executor().die();
  broker.next_life(2);
  CHECK(client_facts(broker.manager, nullptr).at(0).age >= before + std::chrono::milliseconds(29));
}

TEST_CASE("facts: who gets no row is served, and what it does is not known") {
  SessionCountsStore store;
  REQUIRE(store.file() >= 0);
  std::vector<SessionCountsStore::Row> rows;
  for (std::uint64_t session = 1; session < kCountedSessions; ++session) rows.push_back(store.take(session));
  CHECK(rows.front().read());
  CHECK(rows.back().read());
  const SessionCountsStore::Row none = store.take(kCountedSessions);
  CHECK_FALSE(none.read());
  rows.front().set({.gpu_ns = 7, .launches = 8, .waits = 9, .wait_ns = 10});
  CHECK(rows.front().read()->gpu_ns == 7);
  CHECK(rows.front().read()->launches == 8);
  CHECK(rows.front().read()->waits == 9);
  CHECK(rows.front().read()->wait_ns == 10);
  rows.front() = SessionCountsStore::Row();
  const SessionCountsStore::Row again = store.take(5'000);
  REQUIRE(again.read());
  CHECK(again.read()->gpu_ns == 0);
  CHECK(again.read()->launches == 0);
}

TEST_CASE("facts: ages as a person reads them") {
  using std::chrono::milliseconds;
  const struct {
    std::int64_t seconds;
    const char* text;
  } cases[] = {{0, "0s"},          {59, "59s"},          {60, "1:00"},         {3'599, "59:59"},
               {3'600, "1:00:00"}, {86'399, "23:59:59"}, {86'400, "1d 00:00"}, {1'047'600, "12d 03:00"}};
  for (const auto& tried : cases) CHECK(age_text(milliseconds(tried.seconds * 1'000 + 999)) == tried.text);
}
