// SPDX-License-Identifier: Apache-2.0
// Streams that a host function of the client holds back: the fence in front of it comes, nothing behind it is issued before the client says so.
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

  void hold(proto::StreamId stream, std::uint32_t fence, std::uint32_t number) { client.post(proto::HostFunctionRecord{fence, number}, stream); }
  void let_go(proto::StreamId stream, std::uint32_t number) { client.channel().fence(stream.index()).host_value.store(number); }
  std::vector<std::byte> launched() const {
    std::vector<std::byte> arguments;
    for (const FakeCall& call : executor.fake.calls(FakeCall::launch)) {
      if (call.function == &function) arguments.push_back(call.parameters[0]);
    }
    return arguments;
  }
};

using Launched = std::vector<std::byte>;

}  // namespace

TEST_CASE("a host function lets its fence through and nothing behind it") {
  Fixture f;
  f.client.post_launch(f.id, 1, f.a);
  f.hold(f.a, 1, 1);
  f.client.post_launch(f.id, 2, f.a);
  f.client.post_launch(f.id, 3, f.b);
  for (int i = 0; i < 5; ++i) f.client.turn();
  CHECK(f.client.fence(1) == 1);
  CHECK(f.launched() == Launched{std::byte{1}, std::byte{3}});
  CHECK(!f.client.session().streams().is_idle());
  f.let_go(f.a, 1);
  f.client.turn();
  CHECK(f.launched() == Launched{std::byte{1}, std::byte{3}, std::byte{2}});
}

TEST_CASE("each host function is waited for by its own number") {
  Fixture f;
  f.hold(f.a, 1, 1);
  f.client.post_launch(f.id, 1, f.a);
  f.hold(f.a, 2, 2);
  f.client.post_launch(f.id, 2, f.a);
  f.client.turn();
  f.let_go(f.a, 1);
  for (int i = 0; i < 3; ++i) f.client.turn();
  CHECK(f.client.fence(1) == 2);
  CHECK(f.launched() == Launched{std::byte{1}});
  f.let_go(f.a, 2);
  f.client.turn();
  CHECK(f.launched() == Launched{std::byte{1}, std::byte{2}});
}

TEST_CASE("the NULL stream and waits on events come behind a held stream") {
  Fixture f;
  const proto::StreamId blocking = f.client.add_stream(3, CU_STREAM_DEFAULT);
  const proto::EventId event = f.client.add_event(1);
  f.hold(blocking, 1, 1);
  f.client.post(proto::EventRecordRecord{event, 2, 0}, blocking);
  f.client.post(proto::StreamWaitEventRecord{event, 0, 0}, f.b);
  f.client.post_launch(f.id, 1, f.b);
  f.client.post_launch(f.id, 2);
  for (int i = 0; i < 5; ++i) f.client.turn();
  CHECK(f.launched().empty());
  f.let_go(blocking, 1);
  for (int i = 0; i < 3; ++i) f.client.turn();
  CHECK(f.launched().size() == 2);
}

}  // namespace mpsshim::test
