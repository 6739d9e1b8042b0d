// SPDX-License-Identifier: Apache-2.0
// Legacy ordering where contexts with a part of the multiprocessors have NULL streams beside the session's: all of them are ordered as if they were
// one.
#include <map>
#include <set>
#include <vector>

#include "proto/resource_share.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint16_t kSlot = 1;

// Two such contexts: 1 and 2 are the NULL streams, 3 and 4 blocking streams of theirs, 5 is one that is not; 6 is a blocking stream of the session's.
struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  std::atomic<bool> is_closed{false};

  // No launch goes in a chain: a pool that wants more graphs would open a window, and that waits for the work which is held here, with all streams.
  Fixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
    for (const std::uint32_t context : {1U, 2U}) make_part(context);
    executor.parts->nop_function = nullptr;
    add_stream(1, 1, 2);
    add_stream(2, 2, 2);
    add_stream(3, 1, 1);
    add_stream(4, 2, 1);
    add_stream(5, 1, 0);
    client.add_stream(6);
    executor.fake.hold_work();
  }
  ~Fixture() {
    executor.fake.resume_work();
    executor.workers->close(1, [this] { is_closed = true; });
    (void)eventually([this] { return is_closed.load(); });
    executor.workers.reset();
  }

  static proto::StreamId stream(std::uint32_t index) { return index == 0 ? proto::kNullStream : proto::StreamId::make(index, 1); }
  void make_part(std::uint32_t context) {
    const proto::ResourceShare share{{}, 0, 4, 0, 4, static_cast<std::int32_t>(context - 1)};
    client.call(proto::GreenContextCreateRecord{proto::GreenContextId::make(context, 1)}, kSlot, std::as_bytes(std::span(&share, 1)));
    REQUIRE(eventually([&] { return client.is_answered(kSlot) || client.has_failed(); }));
    REQUIRE_FALSE(client.has_failed());
    REQUIRE(client.status(kSlot) == CUDA_SUCCESS);
  }
  void add_stream(std::uint32_t index, std::uint32_t context, std::uint32_t order) {
    client.post(proto::GreenStreamCreateRecord{proto::GreenContextId::make(context, 1), 0, order}, stream(index));
  }
  // In these streams, one behind the other; launch n is in the nth of them.
  void run(const std::vector<std::uint32_t>& streams) {
    for (std::size_t i = 0; i < streams.size(); ++i) client.post_launch(id, i, stream(streams[i]));
    REQUIRE(eventually([&] { return executor.fake.calls(FakeCall::launch).size() == streams.size(); }));
  }
  // Whether launch `later` waits for `earlier`, through whatever events of whatever streams.
  bool is_ordered(std::uint64_t earlier, std::uint64_t later) {
    std::map<CUstream, std::set<std::uint64_t>> behind;
    std::map<CUevent, std::set<std::uint64_t>> recorded;
    for (const FakeCall& call : executor.fake.calls()) {
      std::set<std::uint64_t>& of_stream = behind[call.stream];
      if (call.kind == FakeCall::record) recorded[call.event] = of_stream;
      if (call.kind == FakeCall::wait) of_stream.insert(recorded[call.event].begin(), recorded[call.event].end());
      if (call.kind != FakeCall::launch) continue;
      std::uint64_t number = 0;
      std::memcpy(&number, call.parameters.data(), sizeof number);
      if (number == later) return of_stream.count(earlier) != 0;
      of_stream.insert(number);
    }
    FAIL("launch " << later << " was not issued");
    return false;
  }
};

}  // namespace

TEST_CASE("a context's NULL stream waits for blocking streams, and they for it") {
  Fixture f;
  f.run({3, 5, 1, 3, 5});
  CHECK(f.is_ordered(0, 2));
  CHECK(f.is_ordered(2, 3));
  CHECK_FALSE(f.is_ordered(1, 2));
  CHECK_FALSE(f.is_ordered(2, 4));
}

TEST_CASE("streams that block are not ordered with each other by a NULL stream that has nothing") {
  Fixture f;
  f.run({3, 4, 6, 3});
  CHECK_FALSE(f.is_ordered(0, 1));
  CHECK_FALSE(f.is_ordered(1, 2));
  CHECK_FALSE(f.is_ordered(2, 3));
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
}

TEST_CASE("NULL streams come behind each other, and what blocks behind all of them") {
  Fixture f;
  f.run({1, 2, 0, 4, 6, 1, 3});
  CHECK(f.is_ordered(0, 1));
  CHECK(f.is_ordered(1, 2));
  CHECK(f.is_ordered(2, 3));
  CHECK(f.is_ordered(2, 4));
  CHECK(f.is_ordered(0, 4));
  CHECK(f.is_ordered(3, 5));
  CHECK(f.is_ordered(4, 5));
  CHECK(f.is_ordered(5, 6));
}

TEST_CASE("who uses a context's NULL stream alone pays nothing for its order") {
  Fixture f;
  f.run({1, 1, 1, 1});
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
  CHECK(f.executor.fake.calls(FakeCall::record).empty());
}

TEST_CASE("a fence of a context's NULL stream stands behind blocking streams' work") {
  Fixture f;
  f.run({3});
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
  f.client.post_fence(1, Fixture::stream(1));
  CHECK(eventually([&] { return f.executor.fake.calls(FakeCall::wait).size() == 2; }));  // by way of the session's NULL stream
}

TEST_CASE("an order that streams cannot have is no order") {
  Fixture f;
  f.add_stream(7, 1, 3);
  CHECK(eventually([&] { return f.client.has_failed(); }));
}

}  // namespace mpsshim::test
