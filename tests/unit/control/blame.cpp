// SPDX-License-Identifier: Apache-2.0
// What a hostile client does so that another is taken to be guilty of its fault. The other is busy with a kernel: it loses its session, as whoever
// was at work does, but gets an MPS error, never the fault's.
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Scene {
  ControlFixture broker;
  proto::Attached hostile, bystander;
  TestClient first, second;
  proto::Mapping hostile_page, bystander_page;

  Scene() : first(serve_and_attach(hostile)), second(broker.attach(&bystander)) {
    hostile_page = map_header(first.fds);
    bystander_page = map_header(second.fds);
    executor().set_progress(1, bystander.session, 2, 1);
  }
  ExecutorPeer& executor() { return broker.executor(); }
  void end_executor(CUresult error) {
    executor().report_fault(error);
    executor().die();
    (void)broker.next_life(2);
  }
  void check_nobody_is_guilty() {
    CHECK(state_in(bystander_page) == kFailed);
    CHECK(header_of(bystander_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  }

 private:
  TestClient serve_and_attach(proto::Attached& attached) {
    broker.serve();
    return broker.attach(&attached);
  }
};

}  // namespace

TEST_CASE("a copy that faults, in a graph or by itself, beside a busy bystander") {
  Scene scene;
  scene.executor().set_copies(0, scene.hostile.session, 2, 1);
  scene.end_executor(CUDA_ERROR_ILLEGAL_ADDRESS);
  scene.check_nobody_is_guilty();
  CHECK(header_of(scene.hostile_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("work whose words are written although it has faulted, in a stream that is given back at once") {
  Scene scene;
  scene.executor().set_progress(0, scene.hostile.session, 5, 5, 0);
  scene.executor().leave(0);
  scene.end_executor(CUDA_ERROR_MISALIGNED_ADDRESS);
  scene.check_nobody_is_guilty();
  CHECK(header_of(scene.hostile_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("the same, and the client has ended by then") {
  Scene scene;
  scene.executor().set_progress(0, scene.hostile.session, 5, 5, 0);
  scene.first.hang_up();
  scene.executor().expect<message::SessionClose>();
  scene.executor().leave(0);
  scene.executor().send(message::SessionClosed{.session = scene.hostile.session});
  REQUIRE(turn_until(scene.broker.loop, [&] { return !scene.broker.has_session(scene.hostile.session); }));
  scene.end_executor(CUDA_ERROR_MISALIGNED_ADDRESS);
  scene.check_nobody_is_guilty();
}

TEST_CASE("memory of the device that failed is nobody's fault") {
  Scene scene;
  scene.end_executor(CUDA_ERROR_ECC_UNCORRECTABLE);
  scene.check_nobody_is_guilty();
  CHECK(state_in(scene.hostile_page) == kMoved);
}
