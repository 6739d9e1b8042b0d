// SPDX-License-Identifier: Apache-2.0
// More than one executor for a GPU: who is served where, and when one ends.
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "tests/unit/control/support/starving_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

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
  std::istringstream of_second(broker.command("ps -p " + second));
  const std::set<std::string> words{std::istream_iterator<std::string>(of_second), {}};
  CHECK(words.contains(second));
  CHECK_FALSE(words.contains(first));
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
