// SPDX-License-Identifier: Apache-2.0
// Clients that stand still: stopped in the middle of a call, of a copy, of anything. Nobody waits for them, and when they go on, or die, all
// is as if nothing had been.
#include <csignal>
#include <random>
#include <thread>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("a client stopped in a call: nobody waits for it, and its answer is there when it goes on") {
  Scene scene;
  Client stopped = scene.hostile();
  stopped.begin("stop_in_call");
  for (int turn = 0; turn < 3; ++turn) scene.require_unhurt("it stands still");
  stopped.program().send(SIGCONT);
  CHECK(stopped.answer() == "ok");
  scene.end(stopped);
  scene.require_all_back("it has gone on and ended");
}

TEST_CASE("a client stopped in a call and killed leaves nothing") {
  Scene scene;
  Client stopped = scene.hostile();
  stopped.begin("stop_in_call");
  scene.require_unhurt("it stands still");
  scene.end(stopped);
  scene.require_all_back("it was killed");
}

TEST_CASE("clients stopped at random instants of ordinary work go on where they were, and are right") {
  Scene scene;
  std::mt19937 random(7);
  Client worker(scene.broker());
  for (const char* command : {"storm 300", "hold", "pin", "image good_ptx", "storm 300"}) {
    worker.begin(command);
    for (int turn = 0; turn < 5; ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      worker.program().send(SIGSTOP);
      scene.require_unhurt(std::string("a client stopped in ") + command);
      worker.program().send(SIGCONT);
    }
    const std::string answer = worker.answer();
    INFO(command << ": " << answer << "\n" << scene.broker().log());
    REQUIRE(answer.starts_with("ok"));
  }
  scene.end(worker);
  REQUIRE(scene.broker().wait_for_clients(1));
  scene.require_unhurt("it has ended");
}
