// SPDX-License-Identifier: Apache-2.0
// Waits on events: a queue stands still until the record that was meant has been issued, and never waits for a later one.
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  proto::StreamId a = client.add_stream(1, CU_STREAM_NON_BLOCKING);
  proto::StreamId b = client.add_stream(2, CU_STREAM_NON_BLOCKING);
  proto::EventId event = client.add_event(1);

  void record(proto::StreamId stream, std::uint32_t fence) { client.post(proto::EventRecordRecord{event, fence, 0}, stream); }
  void wait(proto::StreamId stream) { client.post(proto::StreamWaitEventRecord{event, 0, 0}, stream); }
  // Fills stream `a` so that nothing more of it is issued.
  void exhaust_a() {
    client.turn();
    executor.parts->nop_function = nullptr;
    executor.fake.hold_work();
    for (std::uint32_t i = 0; i < broker::kCredit + 10; ++i) client.post_launch(id, i, a);
    for (int i = 0; i < 20; ++i) client.turn();
    executor.fake.forget_calls();
  }
};

}  // namespace

TEST_CASE("an event that was never recorded is not waited for") {
  Fixture f;
  f.wait(f.b);
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
}

TEST_CASE("record and wait reach the driver in this order") {
  Fixture f;
  f.record(f.a, 1);
  f.wait(f.b);
  f.client.turn();
  const auto records = f.executor.fake.calls(FakeCall::record);
  const auto waits = f.executor.fake.calls(FakeCall::wait);
  REQUIRE(records.size() == 1);
  REQUIRE(waits.size() == 1);
  CHECK(records[0].event == waits[0].event);
  CHECK(records[0].stream != waits[0].stream);
  CHECK(f.client.fence(1) == 1);
}

TEST_CASE("a wait for a record that is still queued parks its stream alone") {
  Fixture f;
  f.exhaust_a();
  f.record(f.a, 1);
  f.wait(f.b);
  f.client.post_launch(f.id, 42, f.b);
  f.client.post_launch(f.id, 43);
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
  REQUIRE(f.executor.fake.calls(FakeCall::launch).size() == 1);  // the NULL stream's: non-blocking streams do not hold it
  f.executor.fake.resume_work();
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 1);
  CHECK(f.executor.fake.calls(FakeCall::launch).back().parameters[0] == std::byte{42});
}

TEST_CASE("a wait never becomes a wait for a later record") {
  Fixture f;
  f.record(f.b, 1);  // issued at once
  f.exhaust_a();
  f.wait(f.a);       // queued behind a's backlog
  f.record(f.b, 2);
  f.client.turn();
  const auto records = f.executor.fake.calls(FakeCall::record);
  REQUIRE(records.size() == 1);
  f.executor.fake.resume_work();
  f.client.turn();
  const auto waits = f.executor.fake.calls(FakeCall::wait);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].event != records[0].event);
}

TEST_CASE("a wait that is queued outlives its event") {
  Fixture f;
  f.exhaust_a();
  f.record(f.a, 1);
  f.wait(f.b);
  f.client.post(proto::EventDestroyRecord{f.event});
  f.client.turn();
  f.executor.fake.resume_work();
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 1);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("an event recorded again and again uses one event of the driver") {
  Fixture f;
  for (std::uint32_t i = 1; i <= 10; ++i) f.record(f.a, i);
  f.client.turn();
  f.client.turn();
  f.record(f.a, 11);
  f.client.turn();
  f.record(f.a, 12);
  f.client.turn();
  const auto records = f.executor.fake.calls(FakeCall::record);
  REQUIRE(records.size() == 12);
  CHECK(records[10].event == records[11].event);
  CHECK(f.client.fence(1) == 12);
}

TEST_CASE("a wait comes behind the fence of what it waits for, and the time in front of it") {
  Fixture f;
  const bool is_timed = GENERATE(true, false);
  f.event = f.client.add_event(2, is_timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
  f.record(f.a, 1);
  f.wait(f.b);
  f.client.turn();
  std::vector<FakeCall::Kind> order;
  for (const FakeCall& call : f.executor.fake.calls()) order.push_back(call.kind);
  using Order = std::vector<FakeCall::Kind>;
  const Order words{FakeCall::write, FakeCall::write};
  Order expected = is_timed ? Order{FakeCall::record} : Order{};
  expected.insert(expected.end(), words.begin(), words.end());
  expected.push_back(FakeCall::record);
  expected.push_back(FakeCall::wait);
  order.resize(std::min(order.size(), expected.size()));  // progress of the waiting stream follows
  CHECK(order == expected);
  CHECK(f.executor.fake.calls(FakeCall::record).back().event == f.executor.fake.calls(FakeCall::wait).front().event);
}

}  // namespace mpsshim::test
