// SPDX-License-Identifier: Apache-2.0
// A standby: when it is started, what it is given, how it takes over.
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

ExecutorSettings with_standby(StandbyKind kind = StandbyKind::warm) {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.standby = kind;
  settings.cold_delay = settings.warm_delay = std::chrono::milliseconds(5);
  return settings;
}

ManagedExecutor& first(ControlFixture& broker) { return *broker.manager.executors().at({0, 0}); }

ExecutorPeer& started_standby(ControlFixture& broker, std::size_t lives) {
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == lives; }));
  CHECK(broker.launcher.last().options.standby);
  return broker.launcher.last();
}

XidLine told_of(pid_t pid, unsigned number = 31) {
  XidLine line;
  line.number = number;
  line.pid = pid;
  line.text = "Xid (PCI:0000:17:00): " + std::to_string(number);
  return line;
}

}  // namespace

TEST_CASE("a standby is given what is loaded, takes over at once, and a new one is started") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  TestClient client = broker.attach_to(serving);
  const std::uint64_t before = broker.load_image(serving, client, "loaded before");
  ExecutorPeer& standby = started_standby(broker, 2);
  standby.ready();
  CHECK(standby.expect<message::LoadReplay>().message.object == before);
  const std::uint64_t after = broker.load_image(serving, client, "loaded after");
  CHECK(standby.expect<message::LoadReplay>().message.object == after);

  serving.die();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == standby.pid; }));
  CHECK(first(broker).state() == ExecutorState::active);
  CHECK(first(broker).epoch() == 2);
  for (const std::uint64_t image : {before, after}) CHECK(standby.expect<message::CopyReserve>().message.image == image);
  client.send(proto::Attach{});
  standby.open_session();  // and no image again
  CHECK(client.await<proto::Attached>().epoch == 2);
  ExecutorPeer& next = started_standby(broker, 3);
  next.ready();
  CHECK(next.expect<message::LoadReplay>().message.object == before);
  CHECK(next.expect<message::LoadReplay>().message.object == after);
}

TEST_CASE("beside a standby, too, loads that were undone leave the log beyond a limit: the standby begins anew") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  TestClient client = broker.attach_to(serving);
  started_standby(broker, 2).ready();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).has_next(); }));
  const std::uint64_t image = broker.load_image(serving, client, "loaded again and again");
  const auto length = [&] { return broker.manager.images().log().size(); };
  const std::size_t before = length();
  const auto undo = [&](std::size_t times) {
    const std::size_t had = length();
    for (std::size_t i = 1; i <= times; ++i) {
      serving.send(message::ModuleNote{.object = image, .copy = 1000 + had + i, .kind = LogKind::load});
      serving.send(message::ModuleNote{.object = image, .copy = 1000 + had + i, .kind = LogKind::unload});
      if (i % 32 == 0) turn_until(broker.loop, [&] { return length() >= had + 2 * i; });
    }
  };
  undo(kMaxUndoneLoads);
  REQUIRE(turn_until(broker.loop, [&] { return length() == before + 2 * kMaxUndoneLoads; }));
  CHECK(broker.launcher.lives.size() == 2);
  undo(1);
  ExecutorPeer& standby = started_standby(broker, 3);
  undo(1);
  REQUIRE(turn_until(broker.loop, [&] { return length() == before; }));
  standby.ready();
  CHECK(standby.expect<message::LoadReplay>().message.object == image);
  turn_for(broker.loop, 20);
  CHECK_FALSE(standby.receive());
}

TEST_CASE("a standby that is not ready yet takes over as an executor that starts") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  ExecutorPeer& standby = started_standby(broker, 2);
  serving.die();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == standby.pid; }));
  CHECK(first(broker).state() == ExecutorState::starting);
  standby.ready();
  CHECK(turn_until(broker.loop, [&] { return first(broker).state() == ExecutorState::active; }));
}

TEST_CASE("where the kernel log tells of a fault first, the next executor is started before the report") {
  ControlFixture broker;
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  broker.manager.fault_told(told_of(serving.pid + 1));  // somebody else's
  broker.manager.fault_told(told_of(serving.pid));
  broker.manager.fault_told(told_of(serving.pid));  // another line about it
  ExecutorPeer& next = started_standby(broker, 2);
  next.ready();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).has_next(); }));
  CHECK(first(broker).pid() == serving.pid);
  serving.report_fault(CUDA_ERROR_LAUNCH_FAILED);
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == next.pid; }));
  CHECK(first(broker).state() == ExecutorState::active);
  CHECK(broker.launcher.lives.size() == 2);  // it is no broker with a standby
}

TEST_CASE("a fault that the kernel log tells of and the driver does not: the next executor is ended, and started again at the next word") {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.report_limit = std::chrono::milliseconds(20);
  ControlFixture broker(ControlFixture::quick_limits(), settings);
  broker.serve();
  const ExecutorPeer& serving = broker.executor();
  for (const std::size_t lives : {2, 3}) {
    broker.manager.fault_told(told_of(serving.pid));
    ExecutorPeer& next = started_standby(broker, lives);
    next.ready();
    REQUIRE(turn_until(broker.loop, [&] { return next.killed; }));
    CHECK_FALSE(first(broker).has_next());
  }
  CHECK(first(broker).pid() == serving.pid);
  CHECK(first(broker).state() == ExecutorState::active);
}

TEST_CASE("a trap is known by the kernel log's word and a query that stays out: nobody waits for the driver's report") {
  ControlFixture broker;
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  proto::Attached guilty;
  proto::Attached idle;
  TestClient a = broker.attach(&guilty);
  const auto guilty_page = map_header(a.fds);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  serving.set_progress(0, guilty.session, 2, 1);
  serving.set_progress(1, idle.session, 9, 9, 2 * kLongestStandstill);
  serving.set_call(3, {0, "cuStreamQuery"});
  broker.manager.fault_told(told_of(serving.pid, kXidStopped));
  ExecutorPeer& next = started_standby(broker, 2);
  REQUIRE(turn_until(broker.loop, [&] { return serving.killed; }));
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == next.pid; }));
  next.ready();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).state() == ExecutorState::active; }));
  CHECK(state_in(guilty_page) == static_cast<std::uint32_t>(proto::SessionState::failed));
  CHECK(header_of(guilty_page).session_error == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(state_in(idle_page) == static_cast<std::uint32_t>(proto::SessionState::moved));
}

TEST_CASE("a trap, and a standby is warm: the executor is halted, and killed when that one serves") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  proto::Attached guilty;
  TestClient client = broker.attach(&guilty);
  const auto page = map_header(client.fds);
  ExecutorPeer& standby = started_standby(broker, 2);
  standby.ready();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).has_next(); }));
  serving.set_progress(0, guilty.session, 2, 1);
  serving.set_call(3, {0, "cuStreamQuery"});
  broker.manager.fault_told(told_of(serving.pid, kXidStopped));
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == standby.pid; }));
  CHECK(serving.halted);
  CHECK_FALSE(serving.killed);
  CHECK(first(broker).state() == ExecutorState::active);
  CHECK(header_of(page).session_error == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(turn_until(broker.loop, [&] { return serving.killed; }));
}

TEST_CASE("no trap: another kind of fault, an exception, or a query that comes back") {
  ControlFixture broker;
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  const auto turn_for = [&](std::chrono::milliseconds time, const std::function<void()>& act) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      act();
      broker.loop.turn(1);
    }
  };
  serving.set_call(3, {0, "cuStreamQuery"});
  broker.manager.fault_told(told_of(serving.pid, 31));
  turn_for(5 * TrapSense::kQueryLimit, [] {});
  CHECK_FALSE(serving.killed);
  broker.manager.fault_told(told_of(serving.pid, kXidStopped));
  turn_for(5 * TrapSense::kQueryLimit, [&] { serving.set_call(3, {0, "cuStreamQuery"}); });
  broker.manager.fault_told(told_of(-1, kXidException));
  turn_for(5 * TrapSense::kQueryLimit, [] {});
  CHECK_FALSE(serving.killed);
  broker.manager.fault_told(told_of(serving.pid, kXidStopped));
  turn_for(5 * TrapSense::kQueryLimit, [] {});
  CHECK_FALSE(serving.killed);
  serving.set_call(3, {0, "reporting a fault"});
  turn_for(5 * TrapSense::kQueryLimit, [] {});
  CHECK_FALSE(serving.killed);
  serving.report_fault(CUDA_ERROR_ASSERT);
  CHECK(turn_until(broker.loop, [&] { return serving.killed; }));
}

TEST_CASE("a standby that the driver refuses is ended, and the executor goes on") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  const ExecutorPeer& serving = broker.executor();
  ExecutorPeer& standby = started_standby(broker, 2);
  standby.ready(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(turn_until(broker.loop, [&] { return standby.killed; }));
  CHECK(first(broker).pid() == serving.pid);
  CHECK(first(broker).state() == ExecutorState::active);
}

TEST_CASE("a GPU that takes one process at a time: the standby waits without a context, a second executor is not tried") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.executor().exclusive = true;
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  ExecutorPeer& standby = started_standby(broker, 2);
  CHECK(standby.options.is_cold);
  CHECK(standby.options.device_patience_ms > 0);
  standby.send(message::StandingBy{});
  turn_for(broker.loop, 20);
  serving.die();
  standby.expect<message::MakeContext>();
  standby.exclusive = true;
  standby.ready();
  CHECK(turn_until(broker.loop, [&] { return first(broker).state() == ExecutorState::active; }));
  CHECK(first(broker).pid() == standby.pid);
}

TEST_CASE("a cold standby makes its context when it takes over, and another one comes") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby(StandbyKind::cold));
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  ExecutorPeer& standby = started_standby(broker, 2);
  CHECK(standby.options.is_cold);
  standby.send(message::StandingBy{});
  turn_for(broker.loop, 20);
  CHECK_FALSE(first(broker).has_next());
  CHECK(first(broker).standby() == nullptr);  // it is told of no loads
  serving.die();
  standby.expect<message::MakeContext>();
  CHECK(first(broker).pid() == standby.pid);
  CHECK(first(broker).state() == ExecutorState::starting);
  standby.ready();
  CHECK(turn_until(broker.loop, [&] { return first(broker).state() == ExecutorState::active; }));
  CHECK(started_standby(broker, 3).options.is_cold);
}

TEST_CASE("the kernel log tells of a fault: a cold standby makes its context, and takes over at the report") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby(StandbyKind::cold));
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  ExecutorPeer& next = started_standby(broker, 2);
  const bool is_initialised = GENERATE(true, false);  // by the time it is told
  if (is_initialised) next.send(message::StandingBy{});
  turn_for(broker.loop, 5);
  broker.manager.fault_told(told_of(serving.pid));
  next.expect<message::MakeContext>();
  if (!is_initialised) next.send(message::StandingBy{});
  next.ready();
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).has_next(); }));
  serving.report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(turn_until(broker.loop, [&] { return first(broker).pid() == next.pid; }));
  CHECK(first(broker).state() == ExecutorState::active);
}

TEST_CASE("the kernel log tells of a fault and the driver does not: another cold standby takes the place of the one that has made its context") {
  ExecutorSettings settings = with_standby(StandbyKind::cold);
  settings.report_limit = std::chrono::milliseconds(20);
  ControlFixture broker(ControlFixture::quick_limits(), settings);
  broker.serve();
  const ExecutorPeer& serving = broker.executor();
  for (const std::size_t lives : {2, 3}) {
    ExecutorPeer& unneeded = started_standby(broker, lives);
    CHECK(unneeded.options.is_cold);
    unneeded.send(message::StandingBy{});
    broker.manager.fault_told(told_of(serving.pid));
    unneeded.expect<message::MakeContext>();
    unneeded.ready();
    REQUIRE(turn_until(broker.loop, [&] { return unneeded.killed; }));
  }
  CHECK(started_standby(broker, 4).options.is_cold);
  CHECK(first(broker).pid() == serving.pid);
  CHECK(first(broker).state() == ExecutorState::active);
}

TEST_CASE("quit ends the standby too") {
  ControlFixture broker(ControlFixture::quick_limits(), with_standby());
  broker.serve();
  ExecutorPeer& standby = started_standby(broker, 2);
  broker.manager.quit(CUDA_ERROR_MPS_CLIENT_TERMINATED);
  CHECK(standby.killed);
}
