// SPDX-License-Identifier: Apache-2.0
// Which worker serves a session: by its pace, and on real threads.
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "proto/futex.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("a session that posts long runs goes to another worker and comes back when it waits for each launch, its order unharmed") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  MPSSHIM_SKIP("under sanitizers launches are too slow to be worth a worker of their own");
#endif
  WireExecutor executor(1, 3);
  WireClient client(executor, 1);
  WireClient neighbour(executor, 2);
  FakeFunction function{"f", {8}};
  const proto::FunctionId id = client.add_function(function);
  executor.start_workers();
  executor.workers->add(client.shared_session());
  executor.workers->add(neighbour.shared_session());
  CHECK(executor.workers->worker_of(1) == 0u);

  std::uint64_t posted = 0;
  std::uint64_t checked = 0;
  std::uint32_t fence = 0;
  const auto post_run = [&](std::uint64_t launches) {
    for (std::uint64_t i = 0; i < launches; ++i) {
      while (!client.has_room()) proto::cpu_relax();
      client.post_launch(id, posted++);
    }
    client.post_fence(++fence);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (client.fence() != fence && std::chrono::steady_clock::now() < end) proto::cpu_relax();  // at once: the pace is what counts
    REQUIRE(client.fence() == fence);
    bool in_order = true;
    for (const FakeCall& call : executor.fake.calls(FakeCall::launch)) {
      in_order &= call.parameters.size() == 8 && std::memcmp(call.parameters.data(), &checked, 8) == 0;
      ++checked;
    }
    executor.fake.forget_calls();
    REQUIRE(in_order);
    REQUIRE(checked == posted);
  };
  const auto until = [&](std::uint64_t launches, auto holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds(executor.workers->worker_of(1)) && std::chrono::steady_clock::now() < end) post_run(launches);
    return holds(executor.workers->worker_of(1));
  };
  CHECK(until(20'000, [](auto worker) { return worker != 0u; }));
  CHECK(until(2, [](auto worker) { return worker == 0u; }));
  CHECK(executor.workers->worker_of(2) == 0u);
  CHECK(executor.workers->worker_of(3) == std::nullopt);

  for (const std::uint64_t session : {1, 2}) {
    std::atomic<bool> closed{false};
    executor.workers->close(session, [&] { closed = true; });
    CHECK(eventually([&] { return closed.load(); }));
  }
  executor.workers.reset();
}

TEST_CASE("where a session belongs follows from its pace") {
  using broker::Placement;
  using broker::placement;
  CHECK(placement({5'000, 5}, 5, {.is_at_home = true}) == Placement::elsewhere);
  CHECK(placement({5'000, 0}, 5, {.is_at_home = true}) == Placement::elsewhere);
  CHECK(placement({5'000, 500}, 5, {.is_at_home = true}) == Placement::stay);  // waits after every ten
  CHECK(placement({500, 0}, 5, {.is_at_home = true}) == Placement::stay);      // hardly anything
  CHECK(placement({500, 250}, 5, {.is_at_home = false}) == Placement::home);
  CHECK(placement({500, 20}, 5, {.is_at_home = false}) == Placement::stay);
  CHECK(placement({20, 10}, 5, {.is_at_home = false}) == Placement::stay);                     // too little to judge by
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .full_turns = 3}) == Placement::elsewhere);  // takes all its turns, whatever with
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .full_turns = 2}) == Placement::stay);
  CHECK(placement({100, 10}, 5, {.is_at_home = true, .full_turns = 20}) == Placement::stay);                          // and waits
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .busy_percent = 80, .time_percent = 15}) == Placement::elsewhere);  // takes a busy worker's time
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .busy_percent = 40, .time_percent = 15}) == Placement::stay);       // which is not busy
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .busy_percent = 80, .time_percent = 3}) == Placement::stay);        // it is not who keeps it so
  CHECK(placement({200, 200}, 5, {.is_at_home = true, .busy_percent = 80, .time_percent = 15}) == Placement::stay);   // and waits often
  CHECK(placement({100, 1}, 5, {.is_at_home = true, .busy_percent = 50}) == Placement::elsewhere);  // one of many that keep a worker busy
  CHECK(placement({100, 1}, 5, {.is_at_home = true, .busy_percent = 49}) == Placement::stay);
  CHECK(placement({100, 10}, 5, {.is_at_home = true, .busy_percent = 90}) == Placement::stay);  // waits
  CHECK(placement({40, 0}, 5, {.is_at_home = true, .busy_percent = 90}) == Placement::stay);    // too little to judge by
  CHECK(placement({10, 5}, 5, {.is_at_home = true, .busy_percent = 90, .others_percent = 80}) == Placement::elsewhere);  // crowded out
  CHECK(placement({10, 5}, 5, {.is_at_home = true, .busy_percent = 90, .others_percent = 20}) == Placement::stay);  // by some that wait as it does
  CHECK(placement({0, 0}, 5, {.is_at_home = true, .busy_percent = 90, .others_percent = 80}) == Placement::stay);   // rests
  CHECK(placement({500, 250}, 5, {.is_at_home = false, .others_percent = 40}) == Placement::stay);                  // would have to go again
  CHECK(placement({500, 250}, 5, {.is_at_home = false, .others_percent = 20}) == Placement::home);
}

TEST_CASE("a session that leaves its home goes to the fullest worker that has room for it") {
  using broker::best_place;
  using broker::WorkerLoad;
  const std::vector<WorkerLoad> idle(3);
  CHECK(best_place(idle, 40) == 0);
  const std::vector<WorkerLoad> workers{{55, 5}, {30, 2}, {40, 1}, {0, 0}};
  CHECK(best_place(workers, 5) == 0);
  CHECK(best_place(workers, 10) == 2);
  CHECK(best_place(workers, 30) == 1);
  CHECK(best_place(workers, 50) == 3);
  CHECK(best_place(workers, 90) == 3);  // nobody has room
  const std::vector<WorkerLoad> busy{{80, 2}, {70, 9}, {70, 3}, {95, 1}};
  CHECK(best_place(busy, 20) == 2);
  // Whoever waits often is not to wait for it.
  const std::vector<WorkerLoad> waiting{{20, 3, true}, {10, 2, true}, {30, 1, false}};
  CHECK(best_place(waiting, 10) == 2);
  CHECK(best_place(waiting, 50) == 1);
}

TEST_CASE("a session that takes all its turns is expected to fill a worker, as is one that waits") {
  using broker::expected_percent;
  CHECK(expected_percent({100, 1}, 5, {.full_turns = 2, .time_percent = 7}) == 7);
  CHECK(expected_percent({100, 1}, 5, {.full_turns = 3, .time_percent = 7}) == broker::kFullPercent);
  CHECK(expected_percent({100, 1}, 5, {.full_turns = 3, .time_percent = 90}) == 90);
  // What it had without a core it did not have; what it would take is not less for that.
  CHECK(expected_percent({100, 1}, 5, {.time_percent = 40, .delayed_percent = 50}) == 20);
  CHECK(expected_percent({100, 1}, 5, {.full_turns = 3, .time_percent = 40, .delayed_percent = 50}) == broker::kFullPercent);
  CHECK(expected_percent({10, 5}, 5, {.time_percent = 7}) == broker::kFullPercent);  // and one that waits finds one with nothing else
}

TEST_CASE("a session away from home goes on from a worker that has too much or little to do, one after the other") {
  using broker::is_relief;
  using broker::wants_relief;
  using std::chrono::milliseconds;
  CHECK(wants_relief(85, milliseconds(10)));
  CHECK_FALSE(wants_relief(85, milliseconds(9)));
  CHECK_FALSE(wants_relief(84, milliseconds(1'000)));
  CHECK_FALSE(wants_relief(40, milliseconds(1'000)));
  CHECK(wants_relief(39, milliseconds(100)));
  CHECK_FALSE(wants_relief(39, milliseconds(99)));
  CHECK(is_relief(95, 20, 60));
  CHECK_FALSE(is_relief(95, 20, 70));  // it would be as bad there
  CHECK(is_relief(39, 10, 45));
  CHECK_FALSE(is_relief(10, 10, 10));  // neither would be the emptier
  CHECK_FALSE(is_relief(15, 15, 50));
}

}  // namespace mpsshim::test
