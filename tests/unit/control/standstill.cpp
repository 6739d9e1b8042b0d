// SPDX-License-Identifier: Apache-2.0
// After a fault is reported: an executor whose threads have not all stopped is not judged yet.
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

ExecutorSettings limited_to(std::chrono::milliseconds standstill) {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.standstill_limit = standstill;
  return settings;
}

struct Served : ControlFixture {
  explicit Served(std::chrono::milliseconds standstill) : ControlFixture(quick_limits(), limited_to(standstill)) { serve(); }
};

struct Fixture {
  explicit Fixture(std::chrono::milliseconds standstill) : broker(standstill) {
    executor().stands_still = false;
    executor().set_progress(0, attached.session, 9, 9);
    executor().report_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(turn_until(broker.loop, [&] { return executor().halted; }));
  }
  ExecutorPeer& executor() { return broker.executor(); }
  [[nodiscard]] bool is_judged() const { return state_in(page) != static_cast<std::uint32_t>(proto::SessionState::active); }

  Served broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const proto::Mapping page = map_header(client.fds);
};

}  // namespace

TEST_CASE("who is busy is decided once the executor stands still: until then its workers take records") {
  Fixture f(std::chrono::hours(1));
  for (int i = 0; i < 3; ++i) f.broker.loop.turn(1);
  CHECK_FALSE(f.is_judged());
  f.executor().set_progress(0, f.attached.session, 10, 9);
  f.executor().stands_still = true;
  REQUIRE(turn_until(f.broker.loop, [&] { return f.is_judged(); }));
  CHECK(state_in(f.page) == kFailed);
}

TEST_CASE("an executor of which a thread does not come to stand is waited for a moment only") {
  Fixture f(ExecutorSettings{}.standstill_limit);
  REQUIRE(turn_until(f.broker.loop, [&] { return f.is_judged(); }));
  CHECK(state_in(f.page) == kMoved);
}
