// SPDX-License-Identifier: Apache-2.0
// A program in quarantine: who is served where.
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// All clients are this process, so all are of one program; its first fault puts it in quarantine.
struct Quarantined : ControlFixture {
  explicit Quarantined(unsigned executors = 2, std::chrono::seconds window = std::chrono::seconds(300)) : ControlFixture(limits(executors, window)) {
    serve();
    there = std::make_unique<TestClient>(attach(&stays));
    proto::Attached attached;
    const TestClient guilty = attach(&attached);
    executor().set_progress(0, attached.session, 2, 1);
    executor().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    executor().die();
    next_life(2);
    newcomer = std::make_unique<TestClient>(connect());
    REQUIRE(newcomer->hello().header.status == CUDA_SUCCESS);
    newcomer->send(proto::Attach{});
  }
  static SessionLimits limits(unsigned executors, std::chrono::seconds window) {
    SessionLimits limits = limits_with(executors);
    limits.quarantine = {1, window};
    return limits;
  }
  ExecutorPeer& quarantine() {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == 3; }));
    return executor();
  }
  const ManagedExecutor* executor_of(std::uint64_t id) { return session(id).executor; }
  ExecutorPeer& first() { return *launcher.lives.at(1); }

  proto::Attached stays;
  std::unique_ptr<TestClient> there, newcomer;
};

}  // namespace

TEST_CASE("quarantine: newcomers of the program share an executor of its own, who is there stays") {
  Quarantined broker;
  broker.quarantine().ready();
  broker.quarantine().open_session();
  const auto attached = broker.newcomer->await<proto::Attached>();
  REQUIRE(attached.header.status == CUDA_SUCCESS);
  CHECK_FALSE(broker.executor_of(attached.session)->is_first());
  proto::Attached also;
  const TestClient another = broker.attach(&also);
  CHECK(broker.executor_of(also.session) == broker.executor_of(attached.session));
  broker.there->send(proto::Attach{});
  CHECK(broker.first().expect<message::SessionOpen>().message.session == broker.stays.session);
  CHECK(broker.launcher.lives.size() == 3);
}

TEST_CASE("quarantine: on a GPU that takes one process only it goes on in the first executor") {
  Quarantined broker;
  broker.quarantine().ready(CUDA_ERROR_DEVICE_UNAVAILABLE);
  broker.first().open_session();
  const auto attached = broker.newcomer->await<proto::Attached>();
  REQUIRE(attached.header.status == CUDA_SUCCESS);
  CHECK(broker.executor_of(attached.session)->is_first());
  TestClient another = broker.connect();
  REQUIRE(another.hello().header.status == CUDA_SUCCESS);
  another.send(proto::Attach{});
  broker.first().open_session();
  CHECK(another.await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(broker.launcher.lives.size() == 3);
}

TEST_CASE("quarantine: with one executor the program is served there as before") {
  Quarantined broker(1);
  broker.first().open_session();
  CHECK(broker.newcomer->await<proto::Attached>().header.status == CUDA_SUCCESS);
  CHECK(broker.launcher.lives.size() == 2);
}

TEST_CASE("quarantine: a fault there is felt there alone") {
  Quarantined broker;
  broker.quarantine().ready();
  broker.quarantine().open_session();
  const auto attached = broker.newcomer->await<proto::Attached>();
  const auto page = map_header(broker.newcomer->fds);
  broker.quarantine().set_progress(0, attached.session, 1, 0);
  broker.quarantine().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  broker.quarantine().die();
  REQUIRE(turn_until(broker.loop, [&] { return header_of(page).session_error == CUDA_ERROR_ILLEGAL_ADDRESS; }));
  CHECK_FALSE(broker.first().dead);
}

TEST_CASE("quarantine ends after its time, its executor is then one like others") {
  Quarantined broker(2, std::chrono::seconds(1));
  broker.quarantine().ready();
  broker.quarantine().open_session();
  const auto attached = broker.newcomer->await<proto::Attached>();
  turn_for(broker.loop, 1100);
  TestClient later = broker.connect();
  REQUIRE(later.hello().header.status == CUDA_SUCCESS);
  later.send(proto::Attach{});
  broker.first().open_session();
  const auto placed = later.await<proto::Attached>();
  CHECK(broker.executor_of(placed.session)->is_first());
  CHECK_FALSE(broker.executor_of(attached.session)->is_first());
}
