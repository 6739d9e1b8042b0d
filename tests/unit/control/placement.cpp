// SPDX-License-Identifier: Apache-2.0
// More than one executor for a GPU: who is served where, who moves when, what stays behind.
#include "tests/unit/control/support/control_fixture.hpp"
#include "tests/unit/control/support/kept_variables.hpp"

#include "broker/control/server/commands.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// Two clients in the first executor: one runs a kernel without end on stream 0, the other's call waits for it.
struct Starving : ControlFixture {
  explicit Starving(SessionLimits limits = ControlFixture::limits_with(2)) : ControlFixture(limits) {
    serve();
    endless = std::make_unique<TestClient>(attach(&blocker));
    waiting = std::make_unique<TestClient>(attach(&starved));
    page = map_header(waiting->fds);
    first().set_progress(0, blocker.session, 1, 0);
    first().set_progress(1, starved.session, 7, 7);
  }
  ExecutorPeer& first() { return *launcher.lives.at(0); }
  ExecutorPeer& second() { return *launcher.lives.at(1); }
  void starve(std::uint32_t flags = 0) {
    message::Starved packet{.session = starved.session, .blocker = blocker.session, .flags = flags};
    set_text(packet.text, "cuModuleLoadData");
    first().send(packet);
  }
  // The order to pause the starving session has come; it is answered.
  message::SessionPause expect_pause() {
    order = first().expect<message::SessionPause>().message;
    REQUIRE(order.session == starved.session);
    return order;
  }
  void answer_pause(CUresult status = CUDA_SUCCESS) {
    first().send(message::SessionPaused{
        .session = starved.session, .order = order.order, .flags = order.flags, .status = static_cast<std::uint32_t>(status)});
  }
  // Whether its variables are where they were, after the loads.
  void answer_check(CUresult status = CUDA_SUCCESS) {
    const std::uint64_t check = second().expect<message::VariablesCheck>().message.order;
    second().send(message::VariablesChecked{.session = starved.session, .order = check, .status = static_cast<std::uint32_t>(status)});
  }
  // The second executor is ready and the starving session has left the first.
  void move() {
    starve();
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == 2; }));
    second().ready();
    expect_pause();
    answer_pause();
    REQUIRE(first().expect<message::SessionClose>().message.session == starved.session);
  }
  [[nodiscard]] bool stays() {
    return first().expect<message::Stay>().message.session == starved.session && header_of(page).session_state == kActive;
  }
  std::string command(const std::string& line) {
    std::string text;
    Commands(manager, nullptr).execute(line, [&](const Commands::Result& result) { text = result.text; });
    return text;
  }

  message::SessionPause order;
  proto::Attached blocker, starved;
  std::unique_ptr<TestClient> endless, waiting;
  proto::Mapping page;
};

void add_chunk(Starving& broker, ExecutorPeer& executor, std::uint64_t address) {
  const proto::FileDescriptor file = proto::create_memory_file("test-chunk", 4096);
  executor.send({message::ChunkCreated{.session = broker.starved.session, .chunk = address, .size_bytes = 4096}, {.handle = file.get()}});
}

}  // namespace

TEST_CASE("who starves is paused, told, and opened in a second executor with its memory") {
  Starving broker;
  add_chunk(broker, broker.first(), broker.starved.device_lease.address);
  broker.move();
  CHECK(header_of(broker.page).session_state == kMoved);
  CHECK(broker.second().options.label == "0.1");
  broker.waiting->send(proto::Attach{});
  CHECK(broker.second().expect<message::ChunkRestore>().message.chunk == broker.starved.device_lease.address);
  broker.second().open_session();
  const auto again = broker.waiting->await<proto::Attached>();
  CHECK(again.session == broker.starved.session);
  CHECK(again.epoch > broker.starved.epoch);  // though it is each executor's first life
  CHECK(again.device_lease.address == broker.starved.device_lease.address);
  // The other one is where it was.
  CHECK(broker.session(broker.blocker.session).phase == SessionPhase::active);
  CHECK_FALSE(broker.first().dead);
}

TEST_CASE("newcomers go past a blocked executor, and to the first again when its kernel has ended") {
  Starving broker;
  broker.move();
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  broker.second().open_session();
  CHECK(newcomer.await<proto::Attached>().header.status == CUDA_SUCCESS);
  broker.first().set_progress(0, broker.blocker.session, 2, 1);  // another kernel of the same stream
  TestClient later = broker.connect();
  REQUIRE(later.hello().header.status == CUDA_SUCCESS);
  later.send(proto::Attach{});
  broker.first().open_session();
  CHECK(later.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("a restart asks an executor that comes while it prepares for a next life as well") {
  Starving broker;
  const auto next_of = [&](std::size_t number) -> ExecutorPeer& {
    REQUIRE(turn_until(broker.loop, [&] {
      CHECK_FALSE(broker.manager.restarts().prepare_next_lives());
      return broker.launcher.lives.size() == number;
    }));
    CHECK(broker.launcher.last().options.standby);
    return broker.launcher.last();
  };
  ExecutorPeer& of_first = next_of(2);
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  ExecutorPeer& further = broker.launcher.last();
  CHECK_FALSE(further.options.standby);
  CHECK_FALSE(broker.manager.restarts().prepare_next_lives());
  of_first.ready();
  further.ready();
  next_of(4).ready();
  CHECK(turn_until(broker.loop, [&] { return broker.manager.restarts().prepare_next_lives(); }));
}

TEST_CASE("who does not come to rest stays, and so does who cannot move") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  CHECK(broker.stays());  // no answer within the limit
  broker.starve();
  broker.expect_pause();
  broker.answer_pause(CUDA_ERROR_NOT_PERMITTED);
  CHECK(broker.stays());
}

TEST_CASE("times of events go with who moves, and with nobody who goes on first") {
  Starving broker;
  const auto leave_times = [&] {
    const proto::FileDescriptor file = proto::create_memory_file("test-times", 4096);
    broker.first().send({message::EventTimes{.session = broker.starved.session}, {.times = file.get()}});
  };
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  leave_times();
  const bool moves = GENERATE(true, false);
  broker.answer_pause(moves ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED);
  if (moves) {
    broker.first().expect<message::SessionClose>();
    broker.waiting->send(proto::Attach{});
    broker.second().expect<message::EventTimesRestore>();
    broker.second().open_session();
    REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
    broker.second().die();  // the next one does not get them: they may be older than the session's last events
  } else {
    REQUIRE(broker.stays());
    broker.first().die();
  }
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.executor().ready();
  broker.waiting->send(proto::Attach{});
  CHECK(broker.executor().expect<message::SessionOpen>().message.session == broker.starved.session);
}

TEST_CASE("for who cannot go elsewhere no executor is started, but newcomers are placed elsewhere") {
  Starving broker;
  broker.starve(kStarvesInPlace);
  turn_for(broker.loop, 20);
  CHECK(broker.launcher.lives.size() == 1);
  CHECK_FALSE(broker.first().receive());
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
}

TEST_CASE("a pause that comes too late is no move") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  REQUIRE(broker.stays());
  broker.answer_pause();
  turn_for(broker.loop, 20);
  CHECK(header_of(broker.page).session_state == kActive);
  CHECK_FALSE(broker.first().receive());
  const std::uint64_t former = broker.order.order;
  broker.starve();
  CHECK(broker.expect_pause().order != former);
  broker.order.order = former;
  broker.answer_pause();
  turn_for(broker.loop, 20);
  CHECK(header_of(broker.page).session_state == kActive);
}

TEST_CASE("with one executor who starves stays, as does who waits for itself") {
  {
    Starving broker(ControlFixture::limits_with(1));
    broker.starve();
    CHECK(broker.stays());
    CHECK(broker.launcher.lives.size() == 1);
  }
  Starving broker;
  broker.blocker.session = broker.starved.session;
  broker.starve();
  CHECK(broker.stays());
  CHECK(broker.launcher.lives.size() == 1);
}

TEST_CASE("a GPU that takes one process only is asked once") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});  // placed in the second, which does not come
  turn_for(broker.loop, 10);
  broker.second().ready(CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(broker.stays());
  broker.first().open_session();
  CHECK(newcomer.await<proto::Attached>().header.status == CUDA_SUCCESS);
  broker.starve();
  CHECK(broker.stays());
  CHECK(broker.launcher.lives.size() == 2);
  CHECK(broker.manager.executors().size() == 1);
  CHECK(broker.cannot_start.empty());
}

TEST_CASE("the second executor ends after its last session, a third begins with nothing") {
  Starving broker(ControlFixture::limits_with(2, 50));
  broker.move();
  broker.waiting->send(proto::Attach{});
  broker.second().open_session();
  REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  turn_for(broker.loop, 100);
  CHECK_FALSE(broker.second().receive());
  broker.waiting->hang_up();
  broker.second().expect<message::SessionClose>();
  broker.second().send(message::SessionClosed{.session = broker.starved.session});
  broker.second().expect<message::Quit>();
  broker.second().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.executors().size() == 1; }));
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.executor().ready();
  broker.executor().open_session();
  CHECK(newcomer.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("the death of one executor does not touch the other's sessions") {
  for (const bool first_dies : {true, false}) {
    Starving broker;
    broker.move();
    broker.waiting->send(proto::Attach{});
    broker.second().open_session();
    REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
    const auto moved_page = map_header(broker.waiting->fds);
    const auto endless_page = map_header(broker.endless->fds);
    if (first_dies) {
      broker.first().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
      broker.first().die();
      REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
      CHECK(header_of(endless_page).session_error == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(header_of(moved_page).session_state == kActive);
      CHECK_FALSE(broker.second().dead);
    } else {
      broker.second().die();
      REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
      CHECK(header_of(endless_page).session_state == kActive);
      CHECK(header_of(moved_page).session_state == kMoved);
      CHECK_FALSE(broker.first().dead);
      // It comes back where it was: the first one still has what it left behind.
      broker.executor().ready();
      broker.waiting->send(proto::Attach{});
      broker.executor().open_session();
      CHECK(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("what an executor says of a session that has left it changes nothing") {
  Starving broker;
  add_chunk(broker, broker.first(), broker.starved.device_lease.address);
  broker.move();
  broker.waiting->send(proto::Attach{});
  broker.second().expect<message::ChunkRestore>();
  broker.second().open_session();
  REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  broker.first().send(message::ChunkReleased{.session = broker.starved.session, .chunk = broker.starved.device_lease.address});
  add_chunk(broker, broker.first(), broker.starved.device_lease.address + 8192);
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  turn_for(broker.loop, 20);
  CHECK(broker.session(broker.starved.session).chunks.all().size() == 1);
  CHECK(broker.session(broker.starved.session).phase == SessionPhase::active);
}

TEST_CASE("addresses are taken until the executor that was left has let go of them") {
  SessionLimits limits = ControlFixture::limits_with(2);
  Starving broker(limits);
  broker.move();
  const std::uint64_t address = broker.starved.device_lease.address;
  broker.waiting->hang_up();
  REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(broker.starved.session); }));
  Remnants remnants;
  const ManagedExecutor& first = *broker.manager.executors().at({0, 0});
  remnants.add(first, 5);
  CHECK(remnants.keep(5, {{address, 1}, {}}));
  CHECK_FALSE(remnants.keep(6, {}));
  CHECK(remnants.remove(first, 6).empty());
  const auto free = remnants.remove(first, 5);
  REQUIRE(free.size() == 1);
  CHECK(free[0].device.address == address);
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  turn_for(broker.loop, 20);
  CHECK_FALSE(broker.first().dead);
}

TEST_CASE("ps, get_server_list and get_client_list tell the executors of a GPU apart") {
  Starving broker;
  broker.move();
  broker.waiting->send(proto::Attach{});
  broker.second().open_session();
  REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  const std::string first = std::to_string(broker.first().pid);
  const std::string second = std::to_string(broker.second().pid);
  CHECK(broker.command("get_server_list") == first + "\n" + second + "\n");
  CHECK(broker.command("get_server_status " + second) == "ACTIVE\n");
  const std::string of_second = broker.command("ps -p " + second);
  CHECK(of_second.find(second) != std::string::npos);
  CHECK(of_second.find(first) == std::string::npos);
  const std::string clients = broker.command("get_client_list " + second);
  CHECK(std::count(clients.begin(), clients.end(), '\n') == 1);
}

TEST_CASE("quit ends all executors") {
  Starving broker;
  broker.move();
  broker.manager.quit(CUDA_ERROR_MPS_CLIENT_TERMINATED);
  broker.first().expect<message::Quit>();
  broker.second().expect<message::Quit>();
  broker.first().die();
  turn_for(broker.loop, 20);
  CHECK_FALSE(broker.stopped);
  broker.second().die();
  CHECK(turn_until(broker.loop, [&] { return broker.stopped; }));
}

TEST_CASE("a client that leaves while its move is prepared leaves nothing") {
  Starving broker(ControlFixture::limits_with(2, 30));
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.waiting->hang_up();
  broker.first().expect<message::SessionClose>();
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  broker.second().ready();
  broker.second().expect<message::Quit>();
  broker.second().die();
  CHECK(turn_until(broker.loop, [&] { return broker.manager.executors().size() == 1; }));
}

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
  Starving broker(ControlFixture::limits_with(3));
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

TEST_CASE("a rest that crosses the word that all go on is no move") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const proto::Mapping page = map_header(client.fds);
  ExecutorPeer& executor = *broker.launcher.lives.at(0);
  std::vector<std::string> ends;
  const auto rest = [&](std::chrono::milliseconds patience) {
    broker.manager.restarts().bring_to_rest({patience, false}, [&](const std::string& why) { ends.push_back(why); });
    return executor.expect<message::SessionPause>().message;
  };
  const auto answer = [&](const message::SessionPause& order) {
    executor.send(message::SessionPaused{.session = order.session, .order = order.order, .flags = order.flags});
    turn_for(broker.loop, 20);
  };
  const message::SessionPause first = rest(std::chrono::milliseconds(20));
  executor.expect<message::Stay>();
  REQUIRE(ends.size() == 1);
  CHECK(ends[0] != "");
  answer(first);
  CHECK(header_of(page).session_state == kActive);
  CHECK_FALSE(executor.receive());
  const message::SessionPause second = rest(std::chrono::milliseconds(2'000));
  answer(first);
  CHECK(ends.size() == 1);
  answer(second);
  CHECK(ends == std::vector<std::string>{ends[0], ""});
}
