// SPDX-License-Identifier: Apache-2.0
// Executors' deaths: what clients see.
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

void expect_no_pause(ControlFixture& broker) {
  const ManagedExecutor& executor = *broker.manager.executors().at({0, 0});
  REQUIRE(turn_until(broker.loop, [&] { return executor.state() != ExecutorState::active; }));
  CHECK(executor.state() == ExecutorState::starting);
}

}  // namespace

TEST_CASE("what ends at the last moment before a fault counts as under way") {
  ControlFixture broker;
  broker.serve();
  proto::Attached faulting, waiting, idle;
  TestClient a = broker.attach(&faulting);
  const auto faulting_page = map_header(a.fds);
  TestClient b = broker.attach(&waiting);
  const auto waiting_page = map_header(b.fds);
  TestClient c = broker.attach(&idle);
  const auto idle_page = map_header(c.fds);
  broker.executor().set_progress(0, faulting.session, 5, 5, 0);  // its word was written when the faulted kernel was taken off the GPU
  broker.executor().set_progress(1, waiting.session, 2, 1);
  broker.executor().set_progress(2, idle.session, 9, 9);
  broker.executor().report_fault(CUDA_ERROR_MISALIGNED_ADDRESS);
  broker.executor().die();
  (void)broker.next_life(2);
  CHECK(header_of(faulting_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(header_of(waiting_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(state_in(idle_page) == kMoved);
}

TEST_CASE("a fault: the guilty has the driver's error for good, the idle moves with all it has") {
  ControlFixture broker;
  broker.serve();
  proto::Attached guilty;
  proto::Attached idle;
  TestClient a = broker.attach(&guilty);
  const auto guilty_page = map_header(a.fds);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  broker.create_chunk(idle.session, idle.device_lease.address, "precious");
  proto::SegmentCreate request;
  request.purpose = proto::SegmentPurpose::pinned;
  request.address = idle.pinned_lease.address;
  request.size_bytes = 8192;
  const auto segment = b.ask<proto::SegmentCreated>(request);
  const std::uint64_t image = broker.load_image(broker.executor(), b, "module image");

  broker.executor().set_progress(0, guilty.session, 2, 1);
  broker.executor().set_progress(1, idle.session, 9, 9);
  broker.executor().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  broker.executor().die();
  ExecutorPeer& next = broker.next_life(2);
  CHECK(state_in(guilty_page) == kFailed);
  CHECK(header_of(guilty_page).session_error == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(state_in(idle_page) == kMoved);

  const auto replay = next.expect<message::LoadReplay>();
  CHECK(replay.message.object == image);
  char content[12];
  REQUIRE(pread(replay.fds.image.get(), content, sizeof content, 0) == sizeof content);
  CHECK(std::string(content, sizeof content) == "module image");

  b.send(proto::Attach{});
  const auto chunk = next.expect<message::ChunkRestore>();
  CHECK(chunk.message.chunk == idle.device_lease.address);
  char text[8];
  REQUIRE(pread(chunk.fds.handle.get(), text, 8, 0) == 8);
  CHECK(std::string(text, 8) == "precious");
  const auto restored = next.expect<message::SegmentRestore>();
  CHECK(restored.message.segment == segment.segment);
  CHECK(restored.message.address == request.address);
  const auto open = next.expect<message::SessionOpen>();
  CHECK(open.message.session == idle.session);
  CHECK(open.message.epoch == idle.epoch + 1);
  CHECK(open.message.device_lease.address == idle.device_lease.address);
  next.send(message::SessionOpened{.session = idle.session});
  const auto again = b.await<proto::Attached>();
  REQUIRE(again.header.status == CUDA_SUCCESS);
  CHECK(again.session == idle.session);
  CHECK(again.epoch == idle.epoch + 1);
  CHECK(again.lost == 0);
  REQUIRE(b.fds.count == 4);
  const auto new_page = map_header(b.fds);
  CHECK(state_in(new_page) == static_cast<std::uint32_t>(proto::SessionState::active));
  CHECK(header_of(new_page).tail == 0);

  const auto lost = a.ask<proto::Attached>(proto::Attach{});
  CHECK(lost.header.status == CUDA_SUCCESS);
  CHECK(lost.lost == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(a.fds.count == 0);
  CHECK(a.ask<proto::SegmentCreated>(request).header.status == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a crash without a report: busy sessions get an MPS error, never the driver's") {
  ControlFixture broker;
  broker.serve();
  proto::Attached busy;
  TestClient client = broker.attach(&busy);
  const auto page = map_header(client.fds);
  broker.executor().set_progress(5, busy.session, 1, 0);
  broker.executor().die();
  broker.next_life(2);
  CHECK(state_in(page) == kFailed);
  CHECK(header_of(page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("what an executor said just before its death counts") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const proto::FileDescriptor file = proto::create_memory_file("test-chunk", 4096);
  broker.executor().send(
      {message::ChunkCreated{.session = attached.session, .chunk = attached.device_lease.address, .size_bytes = 4096}, {.handle = file.get()}});
  broker.executor().die();  // both are there when the broker looks
  ExecutorPeer& next = broker.next_life(2);
  client.send(proto::Attach{});
  CHECK(next.expect<message::ChunkRestore>().message.chunk == attached.device_lease.address);
}

TEST_CASE("an executor that reports a fault and stays is killed") {
  ControlFixture broker;
  broker.serve();
  ExecutorPeer& first = broker.executor();
  first.report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(turn_until(broker.loop, [&] { return first.killed; }));
}

TEST_CASE("five deaths within ten seconds: a client with a session is held until the pause is over, a new one gets an error") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  for (std::size_t lives = 1; lives <= 4; ++lives) {
    broker.executor().die();
    broker.next_life(lives + 1);
  }
  broker.executor().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.executors().at({0, 0})->state() == ExecutorState::fault; }));
  client.send(proto::Attach{});
  CHECK(newcomer.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  ExecutorPeer& later = broker.next_life(6);
  later.open_session();
  const auto again = client.await<proto::Attached>();
  CHECK(again.header.status == CUDA_SUCCESS);
  CHECK(again.session == attached.session);
}

TEST_CASE("faults that a client is to blame for, or one of several, do not make the service pause") {
  const unsigned at_work = GENERATE(1u, 2u);  // with two nobody is shown guilty
  SessionLimits limits = ControlFixture::limits_with(2);
  limits.quarantine.faults = 0;
  ControlFixture broker(limits);
  broker.serve();
  for (std::size_t lives = 1; lives <= 7; ++lives) {
    std::vector<TestClient> clients;
    for (unsigned row = 0; row < at_work; ++row) {
      proto::Attached attached;
      clients.push_back(broker.attach(&attached));
      broker.executor().set_progress(row, attached.session, 2, 1);
    }
    broker.executor().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    broker.executor().die();
    expect_no_pause(broker);
    (void)broker.next_life(lives + 1);
  }
  proto::Attached attached;
  const TestClient newcomer = broker.attach(&attached);
  CHECK(attached.header.status == CUDA_SUCCESS);
}

TEST_CASE("nonsense from an executor does not end the control process") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  ExecutorPeer& executor = broker.executor();
  const ExecutorHeader unknown{static_cast<ExecutorMessage>(4711)};
  REQUIRE(executor.send_bytes(std::as_bytes(std::span(&unknown, 1))));
  executor.send(message::Quit{});  // not its to send
  executor.send(message::SessionClosed{.session = 999});
  executor.send(message::SessionClosed{.session = attached.session});
  executor.send(message::SessionOpened{.session = attached.session});
  REQUIRE(executor.send_bytes(OutgoingMessage(message::ChunkCreated{.session = attached.session, .chunk = 4096, .size_bytes = 4096}).bytes()));
  const int extra = STDERR_FILENO;
  REQUIRE(executor.send_bytes(OutgoingMessage(message::HeapUsed{.session = attached.session}).bytes(), {&extra, 1}));
  executor.send(message::ChunkReleased{.session = attached.session});
  executor.send(message::ModuleNote{});
  executor.send(message::ModuleNote{.kind = static_cast<LogKind>(5)});
  executor.send(message::Ready{});
  turn_for(broker.loop, 20);
  CHECK(broker.session(attached.session).phase == SessionPhase::active);
  CHECK(broker.session(attached.session).chunks.all().empty());  // without a descriptor
  CHECK_FALSE(broker.session(attached.session).uses_heap);       // with one
  CHECK_FALSE(executor.dead);
  executor.send_torn(message::HeapUsed{.session = attached.session});
  CHECK(turn_until(broker.loop, [&] { return executor.dead; }));
}

TEST_CASE("quit: every client is told, executors are asked to end, then killed") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const auto page = map_header(client.fds);
  broker.manager.quit(CUDA_ERROR_MPS_CLIENT_TERMINATED);
  CHECK(state_in(page) == kFailed);
  CHECK(header_of(page).session_error == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  broker.executor().expect<message::Quit>();
  CHECK_FALSE(broker.stopped);
  REQUIRE(turn_until(
      broker.loop, [&] { return broker.stopped; }, 3000));
  CHECK(broker.executor().killed);
  CHECK(broker.launcher.lives.size() == 1);
}
