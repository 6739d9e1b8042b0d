// SPDX-License-Identifier: Apache-2.0
// Streams that go to a side context and back, and sessions that spread over the workers that have one.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "proto/futex.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

// Under sanitizers launches are so slow that not all sessions pass for ones that wait often.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSlow = true;
constexpr std::chrono::seconds kPatience{3};
#else
constexpr bool kIsSlow = false;
constexpr std::chrono::seconds kPatience{20};
#endif

struct Fixture {
  WireExecutor executor{1, 1, {}, 1};
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  std::array<std::uint32_t, 16> fences{};

  Fixture() { executor.fake.forget_calls(); }
  void post(std::uint64_t argument, std::uint32_t index = 0) {
    client.post_launch(id, argument, stream(index));
    client.post_fence(++fences[index], stream(index));
    (void)client.turn();
  }
  // The launches since the last call; their graphs are of their streams' contexts.
  std::vector<FakeCall> launches() {
    std::vector<FakeCall> launches = executor.fake.calls(FakeCall::launch);
    executor.fake.forget_calls();
    for (const FakeCall& call : launches) CHECK((call.chain == 0 || call.graph_context == call.stream_context));
    return launches;
  }
  CUcontext context_of_launch(std::uint32_t index) {
    post(7, index);
    // A window in which graphs are made may hold it for a moment.
    REQUIRE(eventually([&] {
      (void)client.turn();
      return client.fence(index) == fences[index];
    }));
    const std::vector<FakeCall> made = launches();
    REQUIRE(made.size() == 1);
    CHECK(made.front().chain != 0);
    return made.front().stream_context;
  }
  void go_to(unsigned home) {
    client.session().home().change_to(home);
    client.session().home().move_streams();
  }
  static proto::StreamId stream(std::uint32_t index) { return index == 0 ? proto::kNullStream : proto::StreamId::make(index, 1); }
};

}  // namespace

TEST_CASE("idle streams go to their home's context with what is launched there, and back") {
  Fixture f;
  f.client.add_stream(1);
  CHECK(f.context_of_launch(0) == nullptr);
  f.go_to(1);
  const CUcontext side = f.context_of_launch(0);
  CHECK(side != nullptr);
  CHECK(f.context_of_launch(1) == side);
  CHECK_FALSE(f.client.session().home().has_streams_to_move());
  CHECK(f.executor.parts->stress.streams_exchanged == 2);  // what tests under stress count
  CHECK(f.client.fence(0) == f.fences[0]);
  CHECK(f.client.fence(1) == f.fences[1]);
  f.go_to(0);
  CHECK(f.context_of_launch(0) == nullptr);
  CHECK(f.context_of_launch(1) == nullptr);
}

TEST_CASE("what the driver keeps local memory for is launched in the executor's own context, also in the middle of a run") {
  constexpr std::uint32_t kLocalBytes = 48;
  Fixture f;
  FakeFunction local{"local", {8}};
  const proto::FunctionId with_local = f.client.add_function(local, kLocalBytes);
  f.executor.parts->local_bytes_high_water = kLocalBytes;  // somebody has launched such a kernel before
  f.go_to(1);
  for (const proto::FunctionId id : {f.id, with_local, f.id}) f.client.post_launch(id, 1);
  f.client.post_fence(++f.fences[0]);
  REQUIRE(eventually([&] {
    (void)f.client.turn();
    return f.client.fence() == f.fences[0];
  }));
  const std::vector<FakeCall> launches = f.launches();
  REQUIRE(launches.size() == 3);
  CHECK(launches[0].stream_context != nullptr);
  CHECK(launches[1].function == &local);
  CHECK(launches[1].stream_context == nullptr);
  CHECK(launches[2].stream_context == nullptr);  // it stays there
}

TEST_CASE("a stream with work under way stays until that has ended") {
  Fixture f;
  f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  f.executor.fake.hold_work();
  f.post(1, 1);
  f.go_to(1);
  CHECK(f.client.session().home().has_streams_to_move());
  f.post(2, 1);
  f.post(3, 0);
  std::vector<FakeCall> launches = f.launches();
  REQUIRE(launches.size() == 3);
  CHECK(launches[1].stream_context == nullptr);
  CHECK(launches[1].stream == launches[0].stream);
  CHECK(launches[2].stream_context != nullptr);
  f.executor.fake.resume_work();
  (void)f.client.turn();
  f.client.session().home().move_streams();
  CHECK_FALSE(f.client.session().home().has_streams_to_move());
  CHECK(f.context_of_launch(1) == launches[2].stream_context);
}

TEST_CASE("work behind work of another stream is behind it wherever the two are") {
  Fixture f;
  f.client.add_stream(1);  // blocking: ordered with the NULL stream
  f.executor.fake.hold_work();
  f.post(1, 1);
  f.go_to(1);    // the NULL stream goes, stream 1 is busy
  f.post(2, 0);  // waits for stream 1's
  const std::vector<FakeCall> calls = f.executor.fake.calls();
  const auto is_wait = [](const FakeCall& call) { return call.kind == FakeCall::wait; };
  const auto wait = std::find_if(calls.begin(), calls.end(), is_wait);
  REQUIRE(wait != calls.end());
  CHECK(wait->stream_context != nullptr);
  const auto behind = std::find_if(wait, calls.end(), [](const FakeCall& call) { return call.kind == FakeCall::launch; });
  REQUIRE(behind != calls.end());
  CHECK(behind->stream == wait->stream);
  f.executor.fake.resume_work();
}

TEST_CASE("a side context lends so many streams, and gets them back when their sessions' have ended") {
  Fixture f;
  for (std::uint32_t index = 1; index <= broker::SideContext::kStreams; ++index) f.client.add_stream(index);
  (void)f.client.turn();
  f.go_to(1);
  std::size_t moved = 0;
  for (std::uint32_t index = 0; index <= broker::SideContext::kStreams; ++index) moved += f.context_of_launch(index) != nullptr ? 1 : 0;
  CHECK(moved == broker::SideContext::kStreams);
  broker::SideContext& side = f.executor.parts->sides[0];
  CHECK(side.take() == nullptr);
  f.client.session().streams().retire_all();
  CHECK_FALSE(f.client.session().streams().reap());
  std::vector<std::unique_ptr<broker::SideStream>> taken;
  while (std::unique_ptr<broker::SideStream> stream = side.take()) taken.push_back(std::move(stream));
  CHECK(taken.size() == broker::SideContext::kStreams);
}

// Each of two threads serves a session of its own, as two workers do that share a context for a while.
TEST_CASE("a side context is used by one thread at a time") {
  constexpr std::uint32_t kRounds = 300;
  WireExecutor executor(1, 1, {}, 1);
  FakeFunction function{"f", {8}};
  WireClient first(executor, 1), second(executor, 2);
  const std::uint64_t chunks[] = {first.add_chunk(1 << 20), second.add_chunk(1 << 20)};
  const proto::FunctionId ids[] = {first.add_function(function), second.add_function(function)};
  const auto serve = [&](WireClient& client, std::size_t index) {
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      client.post_launch(ids[index], round);
      client.post(proto::FillRecord{chunks[index], 4, 1, 1, round, 4});
      client.post_fence(round);
      (void)client.turn();
    }
  };
  for (WireClient* client : {&first, &second}) {
    client->session().home().change_to(1);
    client->session().home().move_streams();
    CHECK_FALSE(client->session().home().has_streams_to_move());
  }
  executor.fake.forget_calls();
  std::thread other([&] { serve(second, 1); });
  serve(first, 0);
  other.join();
  const std::vector<FakeCall> launches = executor.fake.calls(FakeCall::launch);
  CHECK(std::any_of(launches.begin(), launches.end(), [](const FakeCall& call) { return call.stream_context != nullptr; }));
  CHECK(executor.fake.green_conflicts == 0);
}

TEST_CASE("what the driver keeps something for in a context is launched in the executor's own") {
  Fixture f;
  const proto::FunctionId with_local = f.client.add_function(f.function, 16);
  f.executor.parts->local_bytes_high_water = 16;  // it was launched before
  f.go_to(1);
  CHECK(f.context_of_launch(0) != nullptr);
  f.executor.fake.hold_work();
  f.post(1);
  f.client.post_launch(with_local, 2);
  (void)f.client.turn();
  std::vector<FakeCall> made = f.launches();
  REQUIRE(made.size() == 1);  // the second waits for the first
  CHECK(made.front().stream_context != nullptr);
  f.executor.fake.resume_work();
  REQUIRE(eventually([&] {
    (void)f.client.turn();
    return !f.executor.fake.calls(FakeCall::launch).empty();
  }));
  made = f.launches();
  CHECK(made.front().stream_context == nullptr);
  f.go_to(1);
  CHECK_FALSE(f.client.session().home().has_streams_to_move());
  CHECK(f.context_of_launch(0) == nullptr);  // it stays
}

TEST_CASE("a session that waits no more gives its streams back") {
  Fixture f;
  f.go_to(1);
  broker::SideContext& side = f.executor.parts->sides[0];
  CHECK(side.free_streams() == broker::SideContext::kStreams - 1);
  const auto now = std::chrono::steady_clock::now();
  f.client.session().home().note_waiting(false, now + std::chrono::seconds(1));
  CHECK(f.client.session().home().worker() == 1);
  f.client.session().home().note_waiting(true, now + std::chrono::seconds(3));
  f.client.session().home().note_waiting(false, now + std::chrono::milliseconds(4'900));
  CHECK(f.client.session().home().has_waited(now + std::chrono::milliseconds(4'900)));
  CHECK_FALSE(f.client.session().home().has_waited(now + std::chrono::milliseconds(5'100)));
  CHECK(f.client.session().home().worker() == 1);
  f.client.session().home().note_waiting(false, now + std::chrono::milliseconds(5'100));
  CHECK(f.client.session().home().worker() == 0);
  CHECK(side.free_streams() == broker::SideContext::kStreams);
}

TEST_CASE("graphs that the load log names are made again for their context") {
  const WireExecutor executor(1, 1, {}, 1);
  broker::ChainPool& pool = executor.parts->sides[0].chains();
  const broker::ChainShape shape{broker::kMaxChain, true};  // of which it has none at first
  const auto logged = [&](unsigned number) { return broker::ChainPool::LogEntry{number, static_cast<std::uint32_t>(shape.index())}.packed(); };
  const unsigned before = executor.fake.graphs_made;
  executor.parts->make_graph_again(logged(1));
  CHECK(executor.fake.graphs_made == before + 1);
  CHECK(pool.take(shape) != nullptr);
  executor.parts->make_graph_again(logged(2));  // of a life that had more
  CHECK(executor.fake.graphs_made == before + 1);
}

TEST_CASE("side contexts are logged one by one, and used once all are there") {
  WireExecutor executor(1, 4);
  executor.parts->side_contexts = 3;
  CHECK(executor.parts->sides.count() == 0);
  executor.parts->sides.want();
  executor.parts->sides.want();
  REQUIRE(eventually([&] { return executor.parts->sides.count() != 0; }));
  CHECK(executor.parts->sides.count() == 3);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const auto received = receive_message(executor.control_end, proto::MessageDirection::from_executor);
    REQUIRE(received);
    REQUIRE(received->is<broker::message::ModuleNote>());
    const auto note = received->read<broker::message::ModuleNote>();
    CHECK(note.kind == broker::LogKind::side_contexts);
    CHECK(note.object == number);
  }
}

TEST_CASE("side contexts of which an earlier life had some are used once the rest is made") {
  WireExecutor executor(1, 4);
  executor.parts->side_contexts = 3;
  executor.parts->sides.make_up_to(1);  // as the load log says
  executor.parts->sides.make_up_to(2);
  CHECK(executor.parts->sides.count() == 0);
  executor.parts->sides.want();
  REQUIRE(eventually([&] { return executor.parts->sides.count() == 3; }));
}

TEST_CASE("when a worker has too many sessions that wait often") {
  using broker::has_too_many;
  CHECK(has_too_many(3, 0));
  CHECK(has_too_many(3, 1));
  CHECK_FALSE(has_too_many(2, 0));  // as good as alone
  CHECK_FALSE(has_too_many(3, 2));  // it would be the same the other way round
  CHECK_FALSE(has_too_many(8, 8));
}

TEST_CASE("sessions that wait often have side contexts made, spread over the workers, and use no context from two threads") {
  constexpr std::size_t kClients = 6;
  WireExecutor executor(1, 2);
  executor.parts->side_contexts = 1;
  FakeFunction function{"f", {8}};
  std::vector<std::unique_ptr<WireClient>> clients;
  std::vector<proto::FunctionId> ids;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<WireClient>(executor, i + 1));
    ids.push_back(clients.back()->add_function(function));
  }
  executor.start_workers();
  for (const auto& client : clients) executor.workers->add(client->shared_session());
  std::uint32_t round = 0;
  bool is_right = true;
  const auto play = [&] {
    ++round;
    for (std::size_t i = 0; i < kClients; ++i) {
      clients[i]->post_launch(ids[i], round);
      clients[i]->post_fence(round);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (const auto& client : clients) {
      while (client->fence() != round && std::chrono::steady_clock::now() < end) proto::cpu_relax();  // at once: the pace is what counts
      is_right &= client->fence() == round;
    }
    if (round % 256 == 0) executor.fake.forget_calls();
  };
  const auto aside = [&] {
    std::size_t count = 0;
    for (std::size_t i = 0; i < kClients; ++i) count += executor.workers->worker_of(i + 1) == 1u ? 1 : 0;
    return count;
  };
  // Both workers and this thread spin. Without a core each, rounds become so slow with the first session that goes that the next ones stay.
  const std::size_t enough = std::thread::hardware_concurrency() > 3 ? kClients / 2 : 1;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  bool are_spread = false;
  while (is_right && !are_spread && std::chrono::steady_clock::now() < end) {
    play();
    are_spread = aside() >= enough;
  }
  CHECK((are_spread || kIsSlow));
  if (!kIsSlow) CHECK(executor.parts->sides.count() == 1);
  std::size_t in_side = 0;
  do {  // on a busy machine rounds may be so slow for a while that nobody is aside
    executor.fake.forget_calls();
    for (int i = 0; i < 100; ++i) play();
    REQUIRE(is_right);
    for (const FakeCall& call : executor.fake.calls(FakeCall::launch)) {
      CHECK((call.chain == 0 || call.graph_context == call.stream_context));
      in_side += call.stream_context != nullptr ? 1 : 0;
    }
  } while (in_side == 0 && !kIsSlow && std::chrono::steady_clock::now() < end + kPatience);
  if (!kIsSlow) CHECK(in_side > 0);
  CHECK(executor.fake.green_conflicts == 0);

  for (std::size_t i = 0; i < kClients; ++i) {
    std::atomic<bool> closed{false};
    executor.workers->close(i + 1, [&] { closed = true; });
    CHECK(eventually([&] { return closed.load(); }));
  }
  executor.workers.reset();
}

}  // namespace mpsshim::test
