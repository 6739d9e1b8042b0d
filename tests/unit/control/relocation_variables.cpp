// SPDX-License-Identifier: Apache-2.0
// Who moves with variables of its modules: where its loads come to the same addresses.
#include "tests/unit/control/support/kept_variables.hpp"
#include "tests/unit/control/support/starving_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("with variables it moves to an executor that makes the same loads first, all that it has made until it was paused") {
  Starving broker;
  const std::uint64_t image = load_copy(*broker.waiting, broker.first(), "module image", 5);
  keep_variables(broker.loop, broker.first(), broker.session(broker.starved.session), image, 5);
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  CHECK((broker.expect_pause().flags & kPauseWithoutVariables) == 0);
  const auto expect_load = [&](std::uint64_t of, std::uint64_t copy) {
    const auto load = broker.second().expect<message::LoadReplay>();
    CHECK(load.message.object == of);
    CHECK(load.message.copy == copy);
    CHECK(load.message.session == broker.starved.session);
  };
  SECTION("it moves") {
    const std::uint64_t later = load_copy(*broker.waiting, broker.first(), "one that was under way", 6);
    keep_variables(broker.loop, broker.first(), broker.session(broker.starved.session), later, 6);
    CHECK_FALSE(broker.second().receive());
    broker.answer_pause();
    broker.second().expect<message::LoadReplay>();  // whose it was, nobody knows any more
    expect_load(later, 6);
    broker.answer_check();
    broker.first().expect<message::SessionClose>();
    broker.waiting->send(proto::Attach{});
    broker.second().expect<message::VariablesRestore>();
    broker.second().open_session();
    CHECK(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  }
  SECTION("it cannot") {
    broker.answer_pause(CUDA_ERROR_NOT_PERMITTED);
    CHECK(broker.stays());
    CHECK_FALSE(broker.second().receive());
    // That one has loaded nothing, and can be tried again.
    broker.starve();
    broker.expect_pause();
  }
  SECTION("the variables come to other addresses: it stays, and is not asked again") {
    broker.answer_pause();
    expect_load(image, 5);
    broker.answer_check(CUDA_ERROR_NOT_FOUND);
    CHECK(broker.stays());
    CHECK(broker.second().expect<message::VariablesForget>().message.session == broker.starved.session);
    broker.starve();
    turn_for(broker.loop, 20);
    CHECK_FALSE(broker.first().receive());
    CHECK(header_of(broker.page).session_state == kActive);
  }
  SECTION("nobody says where they are") {
    broker.answer_pause();
    expect_load(image, 5);
    broker.second().expect<message::VariablesCheck>();
    CHECK(broker.stays());
  }
}

TEST_CASE("an executor that somebody moves to makes none of its own loads again") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  load_copy(*broker.waiting, broker.second(), "loaded for others", 9);
  broker.answer_pause();
  broker.first().expect<message::SessionClose>();
  broker.waiting->send(proto::Attach{});
  broker.second().open_session();
  CHECK(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("where a session with variables is to go nobody else is placed, and one without brings none along") {
  SessionLimits limits = ControlFixture::limits_with(3);
  limits.pause = std::chrono::seconds(10);  // it is not answered
  Starving broker(limits);
  const bool has_variables = GENERATE(true, false);
  if (has_variables) {
    const std::uint64_t image = load_copy(*broker.waiting, broker.first(), "module image", 5);
    keep_variables(broker.loop, broker.first(), broker.session(broker.starved.session), image, 5);
  }
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  const message::SessionPause pause = broker.expect_pause();
  CHECK(((pause.flags & kPauseWithoutVariables) == 0) == has_variables);
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  if (has_variables) {
    CHECK(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  } else {
    broker.second().open_session();
    CHECK(newcomer.await<proto::Attached>().header.status == CUDA_SUCCESS);
  }
}
