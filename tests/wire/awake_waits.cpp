// SPDX-License-Identifier: Apache-2.0
// Waits in which a client's threads stay awake: what the executor allows, and what it believes of them.
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "broker/executor/base/awake_waits.hpp"
#include "broker/session_counts.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

namespace {

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);

  Fixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
  }
  ~Fixture() { executor.workers.reset(); }
  void close() {
    std::atomic<bool> closed{false};
    executor.workers->close(1, [&] { closed = true; });
    REQUIRE(eventually([&] { return closed.load(); }));
  }
};

}  // namespace

TEST_CASE("what a client says of waits in which it stayed awake counts, as far as there was time for them") {
  Fixture f;
  broker::SessionCounts& counts = f.executor.parts->counts[0];
  proto::ChannelHeader& header = f.client.channel().header();
  usleep(20'000);
  header.awake_waits.fetch_add(3);
  header.awake_wait_ns.fetch_add(5'000'000);
  REQUIRE(eventually([&] { return counts.waits.load() == 3; }));
  CHECK(counts.wait_ns.load() == 5'000'000);
  constexpr std::uint64_t kHourNs = 3'600'000'000'000;
  header.awake_wait_ns.fetch_add(kHourNs);
  header.awake_waits.fetch_add(kHourNs);
  f.close();
  CHECK(counts.wait_ns.load() > 5'000'000);
  CHECK(counts.wait_ns.load() < kHourNs / 2);
  CHECK(counts.waits.load() < kHourNs / 2);
}

TEST_CASE("a client is told how long its waits may stay awake") {
  Fixture f;
  CHECK(f.client.channel().header().awake_us.load() == 0);
  f.client.post_launch(f.id, 1);
  CHECK(eventually([&] { return f.client.channel().header().awake_us.load() == proto::kLowAwakeUs; }));
  f.close();
}
