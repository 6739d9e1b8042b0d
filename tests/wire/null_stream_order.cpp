// SPDX-License-Identifier: Apache-2.0
// Legacy ordering between a session's NULL stream and its blocking streams.
#include <algorithm>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);

  Fixture() { executor.fake.hold_work(); }

  // Which stream a launch with this argument went to, and where it stands in the driver's log.
  std::size_t place_of(std::uint64_t argument) {
    const std::vector<FakeCall> calls = executor.fake.calls();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kind == FakeCall::launch && std::memcmp(calls[i].parameters.data(), &argument, 8) == 0) return i;
    }
    FAIL("launch " << argument << " was not issued");
    return 0;
  }
  // True if launch `later` waits, by an event recorded behind `earlier` in its stream and awaited in front of `later`.
  bool is_ordered(std::uint64_t earlier, std::uint64_t later) {
    const std::vector<FakeCall> calls = executor.fake.calls();
    const std::size_t first = place_of(earlier);
    const std::size_t second = place_of(later);
    for (std::size_t i = first; i < second; ++i) {
      if (calls[i].kind != FakeCall::record || calls[i].stream != calls[first].stream) continue;
      for (std::size_t j = i; j < second; ++j) {
        if (calls[j].kind == FakeCall::wait && calls[j].event == calls[i].event && calls[j].stream == calls[second].stream) return true;
      }
    }
    return false;
  }
  std::size_t events() { return executor.fake.calls(FakeCall::record).size() + executor.fake.calls(FakeCall::wait).size(); }
};

}  // namespace

TEST_CASE("the NULL stream waits for blocking streams, and they for it") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1);
  const proto::StreamId b = f.client.add_stream(2);
  f.client.post_launch(f.id, 1, a);
  f.client.post_launch(f.id, 2, b);
  f.client.post_launch(f.id, 3);
  f.client.post_launch(f.id, 4, a);
  f.client.turn();
  CHECK(f.is_ordered(1, 3));
  CHECK(f.is_ordered(2, 3));
  CHECK(f.is_ordered(3, 4));
  CHECK_FALSE(f.is_ordered(1, 2));
}

TEST_CASE("non-blocking streams take no part") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  f.client.post_launch(f.id, 1, a);
  f.client.post_launch(f.id, 2);
  f.client.post_launch(f.id, 3, a);
  f.client.turn();
  CHECK(f.events() == 0);
}

TEST_CASE("a session that uses one stream pays nothing") {
  Fixture f;
  proto::StreamId stream = proto::kNullStream;
  SECTION("the NULL stream") {}
  SECTION("a blocking stream") { stream = f.client.add_stream(1); }
  for (std::uint64_t i = 0; i < 5; ++i) f.client.post_launch(f.id, i, stream);
  f.client.turn();
  CHECK(f.events() == 0);
}

TEST_CASE("order is made once, not again without new work") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1);
  f.client.post_launch(f.id, 1, a);
  f.client.post_launch(f.id, 2);
  f.client.post_launch(f.id, 3);
  f.client.post_launch(f.id, 4, a);
  f.client.post_launch(f.id, 5, a);
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::record).size() == 2);
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 2);
  CHECK(f.is_ordered(1, 2));
  CHECK(f.is_ordered(3, 4));
}

TEST_CASE("work that has ended needs no event") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1);
  f.client.post_launch(f.id, 1, a);
  f.client.turn();
  f.executor.fake.complete();
  f.client.post_launch(f.id, 2);
  f.client.turn();
  CHECK(f.events() == 0);
}

TEST_CASE("a fence of the NULL stream stands behind blocking streams' work, a fence is no work itself") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1);
  f.client.post_launch(f.id, 1, a);
  f.client.post_fence(1);
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 1);
  f.client.post_fence(1, a);
  f.client.post_launch(f.id, 2, a);
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 1);
}

TEST_CASE("work of a destroyed stream still comes before the NULL stream's") {
  Fixture f;
  const proto::StreamId a = f.client.add_stream(1);
  f.client.post_launch(f.id, 1, a);
  f.client.post(proto::StreamDestroyRecord{}, a);
  f.client.post_launch(f.id, 2);
  f.client.turn();
  CHECK(f.is_ordered(1, 2));
}

// A synchronous copy to the device whose client has not waited for it.
void post_upload(Fixture& f, std::uint64_t chunk, proto::StreamId stream = proto::kNullStream) {
  proto::CopyRecord copy{};
  copy.destination = chunk;
  copy.source = chunk + 64;
  copy.size_bytes = 64;
  copy.flags = proto::CopyFlag::before_all_later;
  f.client.post(copy, stream);
}

TEST_CASE("work of every stream comes after a copy that says so, for as long as it is under way") {
  Fixture f;
  const std::uint64_t chunk = f.client.add_chunk(4096);
  const proto::StreamId a = f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  const proto::StreamId b = f.client.add_stream(2, CU_STREAM_NON_BLOCKING);
  f.client.post_launch(f.id, 1, b);
  f.client.post_launch(f.id, 2);
  post_upload(f, chunk);
  f.client.post_launch(f.id, 3, a);
  f.client.post_launch(f.id, 4, b);
  f.client.post_launch(f.id, 5, a);
  f.client.post_launch(f.id, 6);
  f.client.turn();
  CHECK(f.is_ordered(2, 3));  // the event stands behind the copy, which stands behind launch 2
  CHECK(f.is_ordered(2, 4));
  CHECK(f.executor.fake.calls(FakeCall::record).size() == 1);
  CHECK(f.executor.fake.calls(FakeCall::wait).size() == 2);

  SECTION("each copy anew, from whatever stream") {
    post_upload(f, chunk, a);
    f.client.post_launch(f.id, 7, b);
    f.client.post_launch(f.id, 8);
    f.client.turn();
    CHECK(f.is_ordered(5, 7));
    CHECK(f.is_ordered(5, 8));
  }
  SECTION("one that has ended concerns nobody") {
    f.executor.fake.resume_work();
    f.client.turn();
    post_upload(f, chunk);
    f.client.turn();
    const std::size_t before = f.events();
    f.client.post_launch(f.id, 7, a);
    f.client.turn();
    CHECK(f.events() == before);
  }
}

}  // namespace mpsshim::test
