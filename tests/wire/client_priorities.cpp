// SPDX-License-Identifier: Apache-2.0
// Which priorities streams have in the driver while clients below normal are there, and after.
#include <cstring>
#include <memory>
#include <optional>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr int kGreatest = -3;
constexpr std::uint32_t kBelowNormal = 1;

struct Fixture {
  WireExecutor executor;

  Fixture() { executor.parts->ranks.set_range(0, kGreatest); }

  struct Side {
    WireClient client;
    FakeFunction function{"f", {8}};
    proto::FunctionId id;
    std::uint32_t fence = 0;
    Side(WireExecutor& executor, std::uint64_t session, std::uint32_t priority)
        : client(executor, session, priority), id(client.add_function(function)) {}
  };

  // Of the driver's stream that a launch there goes to.
  int priority(Side& side, proto::StreamId stream = proto::kNullStream) {
    executor.fake.forget_calls();
    side.client.post_launch(side.id, 7, stream);
    side.client.post_fence(++side.fence, stream);
    (void)side.client.turn();
    const std::vector<FakeCall> launches = executor.fake.calls(FakeCall::launch);
    REQUIRE(launches.size() == 1);
    return launches.front().priority;
  }
  static proto::StreamId add_stream(Side& side, std::uint32_t index, int priority) {
    const auto id = proto::StreamId::make(index, 1);
    side.client.post(proto::StreamCreateRecord{CU_STREAM_NON_BLOCKING, priority}, id);
    (void)side.client.turn();
    return id;
  }
};

}  // namespace

TEST_CASE("while a client below normal is there its streams have the least priority, and all others' come before them") {
  Fixture f;
  Fixture::Side normal(f.executor, 1, 0);
  const proto::StreamId urgent = f.add_stream(normal, 1, -1);
  const proto::StreamId most_urgent = f.add_stream(normal, 2, kGreatest);
  CHECK(f.priority(normal) == 0);
  CHECK(f.priority(normal, urgent) == -1);
  {
    Fixture::Side below(f.executor, 2, kBelowNormal);
    CHECK(f.priority(below) == 0);
    CHECK(f.priority(below, f.add_stream(below, 1, kGreatest)) == 0);
    // Streams that were there, and ones that come now.
    CHECK(f.priority(normal) == -1);
    CHECK(f.priority(normal, urgent) == -2);
    CHECK(f.priority(normal, most_urgent) == kGreatest);
    CHECK(f.priority(normal, f.add_stream(normal, 3, 0)) == -1);
    Fixture::Side newcomer(f.executor, 3, 0);
    CHECK(f.priority(newcomer) == -1);
    CHECK(f.priority(below) == 0);
  }
  CHECK(f.priority(normal) == 0);
  CHECK(f.priority(normal, urgent) == -1);
  CHECK(f.priority(normal, most_urgent) == kGreatest);
}

TEST_CASE("each rank below normal that has clients comes before the next one that has") {
  Fixture f;
  f.executor.parts->ranks.set_range(0, -5);
  Fixture::Side normal(f.executor, 1, 0);
  const proto::StreamId urgent = f.add_stream(normal, 1, -2);
  Fixture::Side first(f.executor, 2, 1);
  CHECK(f.priority(normal) == -1);
  CHECK(f.priority(first) == 0);
  {
    Fixture::Side third(f.executor, 3, 3);
    CHECK(f.priority(third, f.add_stream(third, 1, -5)) == 0);
    CHECK(f.priority(first) == -1);
    CHECK(f.priority(normal) == -2);
    CHECK(f.priority(normal, urgent) == -4);
    {
      Fixture::Side second(f.executor, 4, 2);
      CHECK(f.priority(third) == 0);
      CHECK(f.priority(second) == -1);
      CHECK(f.priority(first) == -2);
      CHECK(f.priority(normal) == -3);
      CHECK(f.priority(normal, urgent) == -5);
    }
    CHECK(f.priority(first) == -1);
    first.client.session().provision({.session = 2, .client_priority = 3}, [](CUresult, std::uint32_t) {});
    CHECK(f.priority(first) == 0);
    CHECK(f.priority(third) == 0);
    CHECK(f.priority(normal) == -1);
    first.client.session().provision({.session = 2, .client_priority = 2}, [](CUresult, std::uint32_t) {});
    CHECK(f.priority(first) == -1);
    CHECK(f.priority(normal) == -2);
  }
  CHECK(f.priority(first) == 0);
  CHECK(f.priority(normal) == -1);
}

TEST_CASE("a device with few priorities has the highest ranks alike") {
  Fixture f;
  f.executor.parts->ranks.set_range(0, -1);
  Fixture::Side normal(f.executor, 1, 0), first(f.executor, 2, 1), second(f.executor, 3, 2);
  CHECK(f.priority(second) == 0);
  CHECK(f.priority(first) == -1);
  CHECK(f.priority(normal) == -1);
}

TEST_CASE("a stream at work gets its priority once it is idle") {
  Fixture f;
  Fixture::Side normal(f.executor, 1, 0);
  CHECK(f.priority(normal) == 0);
  f.executor.fake.hold_work();
  CHECK(f.priority(normal) == 0);
  Fixture::Side below(f.executor, 2, kBelowNormal);
  CHECK(f.priority(normal) == 0);
  f.executor.fake.resume_work();
  CHECK(f.priority(normal) == -1);
}

TEST_CASE("a client whose priority changes has the other one from the next launch on, at work or not") {
  Fixture f;
  Fixture::Side other(f.executor, 1, 0);
  Fixture::Side changed(f.executor, 2, 0);
  const proto::StreamId urgent = f.add_stream(changed, 1, -1);
  const auto change_to = [&](std::uint32_t priority) {
    std::optional<CUresult> answered;
    changed.client.session().provision({.session = 2, .client_priority = priority}, [&](CUresult result, std::uint32_t) { answered = result; });
    CHECK(answered == CUDA_SUCCESS);
  };
  CHECK(f.priority(changed, urgent) == -1);
  change_to(kBelowNormal);
  CHECK(f.priority(changed, urgent) == 0);
  CHECK(f.priority(other) == -1);
  change_to(0);
  CHECK(f.priority(changed, urgent) == -1);
  CHECK(f.priority(other) == 0);

  // One at work has nothing more issued until that has ended, and then goes on with the other.
  f.executor.fake.hold_work();
  CHECK(f.priority(changed, urgent) == -1);
  change_to(kBelowNormal);
  f.executor.fake.forget_calls();
  changed.client.post_launch(changed.id, 7, urgent);
  changed.client.post_fence(++changed.fence, urgent);
  (void)changed.client.turn();
  (void)changed.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::launch).empty());
  f.executor.fake.resume_work();
  (void)changed.client.turn();
  const std::vector<FakeCall> launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == 1);
  CHECK(launches.front().priority == 0);
  CHECK(changed.client.fence(1) == changed.fence);
}

TEST_CASE("a stream that is destroyed while its client's priority changes ends where it is") {
  Fixture f;
  Fixture::Side changed(f.executor, 1, 0);
  const proto::StreamId stream = f.add_stream(changed, 1, -1);
  f.executor.fake.hold_work();
  CHECK(f.priority(changed, stream) == -1);
  changed.client.session().provision({.session = 1, .client_priority = kBelowNormal}, [](CUresult, std::uint32_t) {});
  f.executor.fake.forget_calls();
  changed.client.post_launch(changed.id, 7, stream);
  changed.client.post(proto::StreamDestroyRecord{}, stream);
  (void)changed.client.turn();
  f.executor.fake.resume_work();
  (void)changed.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::launch).size() == 1);
}

TEST_CASE("a launch that names a priority itself does not pass its client's") {
  Fixture f;
  const auto launched = [&](Fixture::Side& side, int asked) {
    f.executor.fake.forget_calls();
    struct {
      std::uint64_t argument = 7;
      CUlaunchAttribute attribute{};
    } trailing;
    trailing.attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    trailing.attribute.value.priority = asked;
    proto::LaunchRecord record{};
    record.function = side.id;
    record.grid_x = record.grid_y = record.grid_z = record.block_x = record.block_y = record.block_z = 1;
    record.parameter_bytes = 8;
    record.attribute_count = 1;
    side.client.post(record, proto::kNullStream, std::as_bytes(std::span(&trailing, 1)));
    (void)side.client.turn();
    const std::vector<FakeCall> launches = f.executor.fake.calls(FakeCall::launch);
    REQUIRE(launches.size() == 1);
    return launches.front().own_priority;
  };
  Fixture::Side normal(f.executor, 1, 0);
  CHECK(launched(normal, -2) == -2);
  Fixture::Side below(f.executor, 2, kBelowNormal);
  CHECK(launched(below, kGreatest) == 0);
  CHECK(launched(normal, -1) == -2);
  CHECK(launched(normal, 0) == -1);
}

}  // namespace mpsshim::test
