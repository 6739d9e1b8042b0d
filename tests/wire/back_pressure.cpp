// SPDX-License-Identifier: Apache-2.0
// Credits, bounded queues, and progress.
#include <chrono>
#include <cstring>
#include <set>
#include <vector>

#include <unistd.h>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  std::vector<std::byte> bytes = std::vector<std::byte>(64 * 1024);

  Fixture() { executor.parts->nop_function = nullptr; }  // launches one by one: a submission each
  void post(std::uint32_t launches) {
    for (std::uint32_t i = 0; i < launches; ++i) client.post_launch(id, i);
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) client.turn(false);
  }
  std::size_t launched() { return executor.fake.calls(FakeCall::launch).size(); }
  std::size_t submitted() { return executor.fake.calls().size(); }
};

}  // namespace

TEST_CASE("at most 900 submissions are made past the last known progress") {
  Fixture f;
  f.executor.fake.hold_work();
  f.post(broker::kCredit + 100);
  f.turns(20);
  // The submission that uses the last credit may be followed by one progress write, without which none would come back.
  CHECK(f.submitted() >= broker::kCredit);
  CHECK(f.submitted() <= broker::kCredit + 1);
  const std::size_t before = f.submitted();
  f.turns(3);
  CHECK(f.submitted() == before);

  SECTION("progress gives credit back") {
    f.executor.fake.complete(300);
    f.turns(5);
    CHECK(f.submitted() > before);
    f.executor.fake.resume_work();
    f.turns(5);
    CHECK(f.launched() == broker::kCredit + 100);
  }
  SECTION("what the GPU has done without a progress write behind it does not count") {
    f.executor.fake.complete(100);
    f.turns(3);
    CHECK(f.submitted() == before);
  }
}

TEST_CASE("a turn whose time is up leaves the rest where it is") {
  Fixture f;
  f.post(8 * 64);
  const proto::RingConsumer::Batch batch = f.client.session().channel().ring().peek(f.bytes);
  broker::TurnBudget none(std::chrono::nanoseconds(0), f.client.session().streams().appended());
  const broker::Dispatched done = broker::dispatch_batch(f.client.session(), std::span(f.bytes).first(batch.bytes), none);
  CHECK(done.records == 64);
  CHECK(done.bytes == batch.bytes / batch.records * 64);
  f.client.session().channel().ring().release(done.bytes, done.records);
  f.client.session().streams().own_borrowed();
  f.turns(2);
  CHECK(f.launched() == 8 * 64);
}

TEST_CASE("streams that were not asked for want of time come first the next time") {
  Fixture f;
  f.executor.fake.hold_work();
  constexpr std::uint32_t kStreams = 3;
  for (std::uint32_t index = 1; index <= kStreams; ++index) f.client.post(proto::StreamCreateRecord{1, 0}, proto::StreamId::make(index, 1));
  for (std::uint32_t index = 1; index <= kStreams; ++index) {
    for (int i = 0; i < 100; ++i) f.client.post_launch(f.id, 0, proto::StreamId::make(index, 1));
  }
  const proto::RingConsumer::Batch batch = f.client.session().channel().ring().copy_out(f.bytes);
  broker::dispatch_batch(f.client.session(), std::span(f.bytes).first(batch.bytes));
  std::vector<std::size_t> launched;
  for (std::uint32_t turn = 0; turn < kStreams; ++turn) {
    broker::TurnBudget none(std::chrono::nanoseconds(0));
    CHECK(f.client.session().streams().issue(none).any);
    f.client.session().streams().own_borrowed();
    launched.push_back(f.launched());
  }
  CHECK(launched == std::vector<std::size_t>{32, 64, 96});
  std::set<CUstream> streams;
  for (const FakeCall& call : f.executor.fake.calls(FakeCall::launch)) streams.insert(call.stream);
  CHECK(streams.size() == kStreams);
}

TEST_CASE("progress is written at least every 256 submissions") {
  constexpr std::uint32_t kProgressInterval = broker::FlightLimit::kMost / 4;
  Fixture f;
  f.executor.fake.hold_work();
  f.post(600);
  f.turns(10);
  std::size_t since = 0;
  std::size_t writes = 0;
  for (const FakeCall& call : f.executor.fake.calls()) {
    if (call.kind == FakeCall::write) {
      ++writes;
      since = 0;
    } else {
      CHECK(++since <= kProgressInterval);
    }
  }
  CHECK(writes == 2);
}

TEST_CASE("a dry ring leaves no stream whose idleness is unknown") {
  Fixture f;
  f.post(3);
  f.client.turn(true);
  const broker::StreamProgress& word = f.executor.progress->stream[0];
  CHECK(word.session.load() == 1);
  CHECK(word.issued.load() == 3);
  CHECK(word.completed.load() == 3);
  f.client.turn(true);
  CHECK(f.executor.fake.calls(FakeCall::write).size() == 1);
}

TEST_CASE("issued is raised before the driver has the work, and busy until the GPU has written") {
  Fixture f;
  f.executor.fake.hold_work();
  f.post(1);
  f.client.turn(true);
  CHECK(f.executor.parts->progress.is_busy(0));
  f.executor.fake.complete();
  CHECK_FALSE(f.executor.parts->progress.is_busy(0));
}

TEST_CASE("a fence carries the progress word") {
  for (const bool has_batches : {true, false}) {
    Fixture f;
    f.executor.fake.has_batches = has_batches;
    f.post(1);
    f.client.post_fence(1);
    f.client.turn(true);
    CHECK(f.client.fence() == 1);
    CHECK(f.executor.progress->stream[0].completed.load() == 2);
    CHECK(f.executor.fake.calls(FakeCall::write).size() == 2);
  }
}

TEST_CASE("a session whose queues are full is not read, others are") {
  Fixture f;
  WireClient other(f.executor, 2);
  f.executor.fake.hold_work();
  for (int round = 0; round < 40; ++round) {
    f.post(200);
    f.client.turn(false);
  }
  const std::size_t queued = f.client.session().streams().queued().records;
  CHECK(queued >= 4096);
  CHECK(queued < 4096 + 64 * 1024 / 32);
  CHECK_FALSE(f.client.session().may_read());
  CHECK(f.client.channel().ring().has_records());
  other.post_fence(1);
  other.turn(true);
  f.executor.fake.resume_work();
  CHECK(other.fence() == 1);
  for (int i = 0; i < 60; ++i) f.client.turn(false);
  CHECK(f.launched() == 8000);
  CHECK(f.client.session().streams().queued().records == 0);
  CHECK(f.client.session().streams().queued().bytes == 0);
}

TEST_CASE("what waits in a queue keeps its arguments when the batch is overwritten") {
  Fixture f;
  f.executor.fake.hold_work();
  f.post(broker::kCredit + 50);
  f.turns(5);
  f.executor.fake.resume_work();
  f.turns(5);
  const auto launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == broker::kCredit + 50);
  for (std::uint64_t i = 0; i < launches.size(); ++i) CHECK(std::memcmp(launches[i].parameters.data(), &i, 8) == 0);
}

TEST_CASE("a destroyed stream is used again once its work has ended, not before") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  f.client.turn();
  f.executor.fake.hold_work();
  f.client.post_launch(f.id, 1, a);
  f.client.post(proto::StreamDestroyRecord{}, a);
  f.client.post(proto::StreamCreateRecord{CU_STREAM_NON_BLOCKING, 0}, proto::StreamId::make(1, 2));
  f.client.post_launch(f.id, 2, proto::StreamId::make(1, 2));
  f.client.turn();
  auto launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].stream != launches[1].stream);
  f.executor.fake.complete();
  f.client.turn();
  f.client.post(proto::StreamCreateRecord{CU_STREAM_NON_BLOCKING, 0}, proto::StreamId::make(2, 1));
  f.client.post_launch(f.id, 3, proto::StreamId::make(2, 1));
  f.client.turn();
  launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == 3);
  CHECK(launches[2].stream == launches[0].stream);
}

TEST_CASE("Release is answered once everything before it was issued, not when it has ended") {
  Fixture f;
  f.executor.fake.hold_work();
  f.post(broker::kCredit + 50);
  f.client.call(proto::ReleaseRecord{}, 3);
  for (int i = 0; i < 10; ++i) f.client.turn(false);
  CHECK_FALSE(f.client.is_answered(3));
  f.executor.fake.complete();
  f.client.turn(false);
  f.client.turn(false);
  REQUIRE(f.client.is_answered(3));
  CHECK(f.client.status(3) == CUDA_SUCCESS);
  CHECK(f.executor.parts->progress.is_busy(0));
}

TEST_CASE("long operations keep few in flight, short ones many again") {
  using namespace std::chrono_literals;
  broker::FlightLimit limit;
  CHECK(limit.operations() == broker::FlightLimit::kFirst);
  CHECK(limit.longest_chain() == broker::kMaxChain);
  for (int i = 0; i < 10; ++i) limit.learn(13ms, 512);
  CHECK(limit.operations() == broker::FlightLimit::kLeast);
  CHECK(limit.longest_chain() == 8);
  CHECK(limit.progress_interval() == 16);
  limit.learn(2ms, 64);
  CHECK(limit.operations() == broker::FlightLimit::kLeast);
  for (int i = 0; i < 10; ++i) limit.learn(500us, 64);
  CHECK(limit.operations() == broker::FlightLimit::kMost);
}

TEST_CASE("in a crowd a stream of short runs has two chains in flight, unless its operations are tiny") {
  using namespace std::chrono_literals;
  broker::FlightLimit limit;
  limit.learn(3ms, 1'000);
  limit.set_crowded(true, false);
  CHECK(limit.operations() == broker::FlightLimit::kFirst);  // 3 us each
  limit.learn(3ms, 60);
  limit.set_crowded(true, false);
  CHECK(limit.longest_chain() == 20);  // 50 us each
  CHECK(limit.operations() == 22);     // with the first one's fence
  CHECK(limit.progress_interval() == 1);
  limit.learn(20ms, 1);
  CHECK(limit.longest_chain() == 17);  // perhaps others held it up
  for (int i = 0; i < 100; ++i) limit.learn(20ms, 1);
  CHECK(limit.longest_chain() == 1);
  limit.set_crowded(false, false);
  CHECK(limit.operations() == broker::FlightLimit::kFirst);
}

TEST_CASE("a stream whose work comes back slowly gets less of it at a time") {
  WireExecutor executor;
  WireClient client(executor);
  FakeFunction function{"f", {8}};
  const proto::FunctionId id = client.add_function(function);
  executor.fake.hold_work();
  std::uint64_t posted = 0;
  const auto in_flight = [&] { return executor.progress->stream[0].issued.load() - executor.progress->stream[0].completed.load(); };
  std::uint32_t most = 0;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 1'000 && client.has_room(); ++i) client.post_launch(id, posted++);
    for (int i = 0; i < 3; ++i) client.turn(false);
    most = in_flight();
    usleep(6'000);
    executor.fake.complete(4);  // submissions
  }
  CHECK(most <= broker::FlightLimit::kLeast + 8);
  executor.fake.resume_work();
  for (int i = 0; i < 400 && executor.fake.calls(FakeCall::launch).size() < posted; ++i) client.turn(false);
  const auto launches = executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == posted);
  for (std::uint64_t i = 0; i < posted; ++i) REQUIRE(std::memcmp(launches[i].parameters.data(), &i, 8) == 0);
}

}  // namespace mpsshim::test
