// SPDX-License-Identifier: Apache-2.0
// Trials: who was at work when nobody could be shown guilty has its launches run again, one session at a time.
#include <vector>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr auto kOnTrial = static_cast<std::uint32_t>(proto::SessionState::on_trial);

SessionLimits limits_with_trials(int trial_ms = 2000, unsigned executors = 2) {
  SessionLimits limits = ControlFixture::limits_with(executors);
  limits.trial = std::chrono::milliseconds(trial_ms);
  return limits;
}

// Two clients with kernels under way and an idle one, whose executor has met a fault.
struct Faulted : ControlFixture {
  explicit Faulted(SessionLimits limits = limits_with_trials()) : ControlFixture(limits) {
    serve();
    for (proto::Attached* attached : {&first, &second, &idle}) {
      clients.push_back(attach(attached));
      pages.push_back(map_header(clients.back().fds));
    }
    executor().set_progress(0, first.session, 5, 4);
    executor().set_progress(1, second.session, 7, 2);
    executor().set_progress(2, idle.session, 9, 9);
    executor().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(turn_until(loop, [&] { return state_in(pages[2]) == kMoved; }));
  }
  // Lives begin in this order.
  ExecutorPeer& trial() { return *launcher.lives.at(1); }
  ExecutorPeer& next() { return *launcher.lives.at(2); }
  void begin(std::size_t client) { clients[client].send(proto::Attach{}); }
  // The trial's executor opens that session and none besides; its client has its channel.
  proto::Mapping open(std::size_t client, const proto::Attached& whose) {
    REQUIRE(trial().expect<message::SessionOpen>().message.session == whose.session);
    turn_for(loop, 10);
    REQUIRE_FALSE(trial().receive());
    trial().send(message::SessionOpened{.session = whose.session});
    const auto attached = clients[client].await<proto::Attached>();
    REQUIRE(attached.header.status == CUDA_SUCCESS);
    REQUIRE(attached.lost == 0);
    return map_header(clients[client].fds);
  }
  void tell(std::size_t client, proto::TrialOutcome outcome = proto::TrialOutcome::nothing) {
    proto::TrialEnded ended;
    ended.outcome = outcome;
    REQUIRE(clients[client].ask<proto::TrialNoted>(ended).header.status == CUDA_SUCCESS);
  }
  void close(const proto::Attached& whose) {
    REQUIRE(trial().expect<message::SessionClose>().message.session == whose.session);
    trial().send(message::SessionClosed{.session = whose.session});
  }
  // Nothing of it is left, and it has no next life.
  [[nodiscard]] bool is_over() {
    return turn_until(loop, [&] { return manager.executors().size() == 1; });
  }
  [[nodiscard]] CUresult error_of(std::size_t client) { return static_cast<CUresult>(clients[client].ask<proto::Attached>(proto::Attach{}).lost); }

  proto::Attached first, second, idle;
  std::vector<TestClient> clients;
  std::vector<proto::Mapping> pages;
};

}  // namespace

TEST_CASE("whose launches fault again is guilty, the others are told that their work is lost") {
  Faulted broker;
  CHECK(state_in(broker.pages[0]) == kOnTrial);
  CHECK(state_in(broker.pages[1]) == kOnTrial);
  broker.begin(0);
  broker.begin(1);
  broker.trial().ready();
  const proto::Mapping innocent = broker.open(0, broker.first);
  broker.tell(0);
  CHECK(state_in(innocent) == kFailed);
  CHECK(header_of(innocent).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  turn_for(broker.loop, 10);
  broker.close(broker.first);
  const proto::Mapping guilty = broker.open(1, broker.second);
  broker.trial().set_progress(0, broker.second.session, 3, 0);
  broker.trial().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(turn_until(broker.loop, [&] { return state_in(guilty) == kFailed; }));
  CHECK(header_of(guilty).session_error == CUDA_ERROR_ILLEGAL_ADDRESS);
  broker.trial().die();
  CHECK(broker.is_over());
  CHECK(broker.launcher.lives.size() == 3);
  CHECK(broker.error_of(0) == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(broker.error_of(1) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("an idle client goes on beside a trial, in the first executor") {
  Faulted broker;
  broker.begin(0);
  broker.begin(2);
  broker.trial().ready();
  (void)broker.open(0, broker.first);
  broker.next().ready();
  broker.next().open_session();
  const auto again = broker.clients[2].await<proto::Attached>();
  CHECK(again.session == broker.idle.session);
  CHECK(again.lost == 0);
}

TEST_CASE("with somebody shown guilty the other suspects are not waited for") {
  Faulted broker;
  broker.begin(0);
  broker.begin(1);
  broker.trial().ready();
  const proto::Mapping guilty = broker.open(0, broker.first);
  broker.trial().set_progress(0, broker.first.session, 3, 0);
  broker.trial().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(broker.clients[1].await<proto::Attached>().lost == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(header_of(guilty).session_error == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("another fault than the one that a trial is about shows nobody guilty") {
  Faulted broker;
  broker.begin(0);
  broker.begin(1);
  broker.trial().ready();
  const proto::Mapping other = broker.open(0, broker.first);
  broker.trial().set_progress(0, broker.first.session, 3, 0);
  broker.trial().report_fault(CUDA_ERROR_ILLEGAL_INSTRUCTION);
  REQUIRE(turn_until(broker.loop, [&] { return state_in(other) == kFailed; }));
  CHECK(header_of(other).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  // The next one is tried in its next life.
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 4; }));
  broker.executor().ready();
  CHECK(broker.executor().expect<message::SessionOpen>().message.session == broker.second.session);
}

TEST_CASE("nobody waits longer than --trial-ms for a trial") {
  Faulted broker(limits_with_trials(50));
  broker.begin(0);
  broker.begin(1);
  SECTION("whose executor does not come") {
    CHECK(broker.clients[0].await<proto::Attached>().lost == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(broker.clients[1].await<proto::Attached>().lost == CUDA_ERROR_MPS_SERVER_NOT_READY);
  }
  SECTION("that does not end") {
    broker.trial().ready();
    const proto::Mapping endless = broker.open(0, broker.first);
    CHECK(broker.clients[1].await<proto::Attached>().lost == CUDA_ERROR_MPS_SERVER_NOT_READY);
    REQUIRE(turn_until(broker.loop, [&] { return state_in(endless) == kFailed; }));
    CHECK(header_of(endless).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
    broker.close(broker.first);
  }
  CHECK(turn_until(broker.loop, [&] { return broker.trial().receive().has_value(); }));  // Quit
  broker.trial().die();
  CHECK(broker.is_over());
}

TEST_CASE("clients that end while they wait for their trial, or stand it, hold nobody up") {
  Faulted broker;
  broker.begin(0);
  broker.begin(1);
  broker.trial().ready();
  SECTION("in front of their turn") {
    broker.clients[1].hang_up();
    (void)broker.open(0, broker.first);
    broker.tell(0);
    broker.close(broker.first);
  }
  SECTION("in their turn") {
    (void)broker.open(0, broker.first);
    broker.clients[0].hang_up();
    broker.close(broker.first);
    (void)broker.open(1, broker.second);
    broker.tell(1, proto::TrialOutcome::not_run);
    broker.close(broker.second);
  }
  CHECK(turn_until(broker.loop, [&] { return broker.trial().receive().has_value(); }));  // Quit
  broker.trial().die();
  CHECK(broker.is_over());
}

TEST_CASE("without trials, or an executor for them, work in flight is lost at once") {
  Faulted broker(GENERATE(0, 1) == 0 ? limits_with_trials(0) : limits_with_trials(2000, 1));
  CHECK(state_in(broker.pages[0]) == kFailed);
  CHECK(header_of(broker.pages[0]).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(state_in(broker.pages[1]) == kFailed);
  CHECK(broker.launcher.lives.size() == 2);
}

TEST_CASE("a restart of the program leaves nobody on trial, who would be tried among the others then") {
  Faulted broker;
  StateWriter state;
  broker.manager.save(state);
  CHECK(state_in(broker.pages[0]) == kFailed);
  CHECK(broker.error_of(0) == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("the context for trials is made behind that of the next life, whose clients lose nothing, or when that one does not come") {
  Faulted broker;
  CHECK(broker.trial().options.is_cold);
  turn_for(broker.loop, 50);
  CHECK_FALSE(broker.trial().receive());
  SECTION("it comes") {
    broker.next().ready();
    (void)broker.trial().expect<message::MakeContext>();
  }
  SECTION("it does not") { (void)broker.trial().expect<message::MakeContext>(); }
}

TEST_CASE("the context for trials is made at once where all clients were at work") {
  ControlFixture broker(limits_with_trials());
  broker.serve();
  proto::Attached first, second;
  ExecutorPeer& serving = broker.executor();
  const TestClient one = broker.attach(&first), other = broker.attach(&second);
  serving.set_progress(0, first.session, 5, 4);
  serving.set_progress(1, second.session, 7, 2);
  serving.report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  (void)broker.launcher.lives.at(1)->expect<message::MakeContext>();
}

TEST_CASE("who has launched least is tried first") {
  Faulted broker;
  broker.executor().counts(broker.first.session).launches = 1'000'000;
  broker.executor().counts(broker.second.session).launches = 7;
  broker.begin(0);
  broker.begin(1);
  broker.trial().ready();
  (void)broker.open(1, broker.second);
  broker.tell(1);
  broker.close(broker.second);
  (void)broker.open(0, broker.first);
}

namespace {

ExecutorSettings settings_with_spare() {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.standby = StandbyKind::cold;
  settings.cold_delay = std::chrono::seconds(30);  // a standby would be in the way here
  settings.spare_delay = std::chrono::milliseconds(5);
  return settings;
}

}  // namespace

TEST_CASE("where several clients are, a spare process waits to be the executor for trials") {
  ControlFixture broker(limits_with_trials(), settings_with_spare());
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  proto::Attached first, second;
  TestClient one = broker.attach(&first);
  turn_for(broker.loop, 50);
  REQUIRE(broker.launcher.lives.size() == 1);
  TestClient other = broker.attach(&second);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  ExecutorPeer& spare = broker.launcher.last();
  CHECK(spare.options.standby);
  CHECK(spare.options.is_cold);
  CHECK(spare.options.label == "0.1");
  CHECK(broker.manager.executors().size() == 1);  // it serves nobody, and is in no list

  SECTION("a fault that nobody is shown guilty of begins with it") {
    serving.set_progress(0, first.session, 5, 4);
    serving.set_progress(1, second.session, 7, 2);
    serving.report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(turn_until(broker.loop, [&] { return broker.manager.executors().contains({0, 1}); }));
    CHECK(broker.manager.executors().at({0, 1})->pid() == spare.pid);
    REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));  // the first's next life
    CHECK(broker.launcher.last().options.label == "0");
    broker.launcher.last().ready();
    (void)spare.expect<message::MakeContext>();
    one.send(proto::Attach{});
    spare.ready();
    CHECK(spare.expect<message::SessionOpen>().message.session == first.session);
  }
  SECTION("it ends when there is one client left") {
    one.hang_up();
    (void)serving.expect<message::SessionClose>();
    serving.send(message::SessionClosed{.session = first.session});
    CHECK(turn_until(broker.loop, [&] { return spare.killed; }));
  }
  SECTION("it ends in front of a hand-over, after which nobody would know it") {
    broker.manager.restarts().retire_executors([] {});
    CHECK(turn_until(broker.loop, [&] { return spare.killed; }));
  }
  SECTION("with the broker it ends, too") {
    broker.manager.quit(CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(turn_until(broker.loop, [&] { return spare.killed; }));
  }
}

TEST_CASE("without trials no spare process waits") {
  SessionLimits limits = limits_with_trials(0);
  if (GENERATE(false, true)) limits = limits_with_trials(2000, 1);  // nor where no further executor may be had
  ControlFixture broker(limits, settings_with_spare());
  broker.serve();
  TestClient one = broker.attach(), other = broker.attach();
  turn_for(broker.loop, 50);
  CHECK(broker.launcher.lives.size() == 1);
}
