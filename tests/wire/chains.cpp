// SPDX-License-Identifier: Apache-2.0
// Runs of launches go out as graphs: same kernels, same arguments, same order.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <unistd.h>

#include "broker/executor/base/empty_kernel.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/chain_fixture.hpp"

namespace mpsshim::test {
namespace {

using Fixture = ChainFixture;
using Shape = std::vector<std::size_t>;

}  // namespace

TEST_CASE("chains have any length up to 8, then 16, 32 and 64") {
  for (std::size_t launches = 1; launches <= 8; ++launches) CHECK(broker::chain_length(launches) == launches);
  CHECK(broker::chain_length(9) == 8);
  CHECK(broker::chain_length(31) == 16);
  CHECK(broker::chain_length(32) == 32);
  CHECK(broker::chain_length(64) == 64);
  CHECK(broker::chain_length(100) == 64);
}

TEST_CASE("a run becomes chains in order, whatever its length") {
  const auto count =
      GENERATE(std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{31}, std::uint64_t{32}, std::uint64_t{33}, std::uint64_t{200});
  Fixture f;
  for (std::uint64_t i = 0; i < count; ++i) f.client.post_launch(f.id, i);
  f.client.turn();
  f.check_arguments(count);
  if (count == 1) CHECK(f.shape() == Shape{1});
  if (count == 3) CHECK(f.shape() == Shape{3});
  if (count == 33) CHECK(f.shape() == Shape{32, 1});
  if (count == 200) CHECK(f.shape() == Shape{64, 64, 64, 8});
}

TEST_CASE("a fence behind the run is the chain's last node, with the progress word") {
  Fixture f;
  for (std::uint64_t i = 0; i < 9; ++i) f.client.post_launch(f.id, i);
  f.client.post_fence(5);
  f.client.turn();
  f.check_arguments(9);
  CHECK(f.shape() == Shape{8, 1});
  CHECK(f.client.fence() == 5);
  const auto writes = f.executor.fake.calls(FakeCall::write);
  REQUIRE(writes.size() == 2);
  CHECK(writes[0].chain == 2);
  CHECK(f.executor.progress->stream[0].completed.load() == 10);
}

TEST_CASE("in a flood the longest chains have words as often as progress is due, not each of them") {
  Fixture f;
  f.executor.fake.hold_work();
  std::uint64_t posted = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 2'000 && f.client.has_room(); ++i) f.client.post_launch(f.id, posted++);
    for (int i = 0; i < 3; ++i) f.client.turn(false);
    f.executor.fake.complete();  // at once: the stream may have more and more in flight
  }
  f.executor.fake.resume_work();
  for (int i = 0; i < 400 && f.launches().size() < posted; ++i) f.client.turn();
  f.check_arguments(posted);
  std::map<unsigned, bool> longest;  // chains, and whether they have words
  for (const FakeCall& call : f.executor.fake.calls()) {
    if (call.kind == FakeCall::launch && call.chain_length == broker::kMaxChain) longest.try_emplace(call.chain, false);
    if (const auto chain = longest.find(call.chain); call.kind == FakeCall::write && chain != longest.end()) chain->second = true;
  }
  const auto with_words = static_cast<std::size_t>(std::ranges::count(longest, true, [](const auto& chain) { return chain.second; }));
  INFO(longest.size() << " chains of the longest, of which " << with_words << " have words");
  CHECK(longest.size() > 20);
  CHECK(with_words > longest.size() / 8);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  CHECK(with_words < longest.size());  // how much may be in flight is learned from a pace that sanitizers slow down
#else
  CHECK(with_words < longest.size() * 3 / 4);
#endif
}

TEST_CASE("where there is no graph without words, one with them will do") {
  const bool is_there = GENERATE(true, false);
  Fixture f;
  FakeFunction endless{"endless", {8}};  // a function of its own: launches of one that runs long go out singly
  const proto::FunctionId endless_id = f.client.add_function(endless);
  const std::uint64_t chunk = f.client.add_chunk(4096);
  f.executor.fake.hold_work();
  f.client.post_launch(endless_id, 0, f.client.add_stream(1));
  f.client.turn(false);  // in flight: no window makes more graphs
  std::vector<std::unique_ptr<broker::ChainGraph>> taken;
  while (!is_there) {
    taken.push_back(f.executor.parts->chain_pool.take({2, false}));
    if (!taken.back()) break;
  }
  f.client.post_launch(f.id, 1);
  f.client.post_launch(f.id, 2);
  f.client.post(proto::FillRecord{chunk, 0, 4, 1, 0, 4});  // so that nothing wants words behind the launches
  REQUIRE(eventually([&] {
    f.client.turn(false);
    return f.launches().size() == 3;
  }));
  CHECK(f.shape() == Shape{1, 2});
  const auto writes = f.executor.fake.calls(FakeCall::write);
  CHECK(std::ranges::count(writes, 2u, &FakeCall::chain) == (is_there ? 0 : 1));
}

TEST_CASE("a graph that is used again gets the new arguments, functions and grids") {
  Fixture f;
  for (std::uint64_t round = 0; round < 12; ++round) {
    f.client.post_launch(f.id, round, proto::kNullStream, static_cast<std::uint32_t>(round + 1));
    if (round % 2 == 0) {
      struct {
        std::uint32_t first = 7;
        std::uint32_t padding = 0;
        std::uint64_t second;
        std::uint64_t third = 9;
      } parameters{7, 0, round, 9};
      proto::LaunchRecord launch{};
      launch.function = f.second_id;
      launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
      launch.parameter_bytes = 17;
      f.client.post(launch, proto::kNullStream, std::as_bytes(std::span(&parameters, 1)).first(17));
    } else {
      f.client.post_launch(f.id, round + 100);
    }
    f.client.turn();
  }
  const auto calls = f.launches();
  REQUIRE(calls.size() == 24);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const FakeCall& first = calls[2 * round];
    const FakeCall& second = calls[2 * round + 1];
    CHECK(first.chain_length == 2);
    CHECK(first.grid_x == round + 1);
    CHECK(std::memcmp(first.parameters.data(), &round, 8) == 0);
    CHECK(second.function == (round % 2 == 0 ? &f.second : &f.function));
    const std::uint64_t expected = round % 2 == 0 ? round : round + 100;
    CHECK(std::memcmp(second.parameters.data() + (round % 2 == 0 ? 8 : 0), &expected, 8) == 0);
  }
}

TEST_CASE("a launch with too many parameters for a node goes out singly, in its place") {
  Fixture f;
  FakeFunction most{"most", {broker::kMostNodeParameterBytes}};
  FakeFunction more{"more", {broker::kMostNodeParameterBytes, 8}};
  const auto post = [&](FakeFunction& function, std::uint64_t argument) {
    std::vector<std::byte> parameters(function.layout().back().first + function.layout().back().second);
    std::memcpy(parameters.data(), &argument, sizeof argument);
    proto::LaunchRecord launch{};
    launch.function = f.client.add_function(function);
    launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
    launch.parameter_bytes = static_cast<std::uint32_t>(parameters.size());
    f.client.post(launch, proto::kNullStream, parameters);
  };
  f.client.post_launch(f.id, 0);
  post(most, 1);
  post(more, 2);
  f.client.post_launch(f.id, 3);
  f.client.turn();
  f.check_arguments(4);
  CHECK(f.shape() == Shape{2, 0, 1});
}

TEST_CASE("launches that a node cannot hold split the run and keep their place") {
  Fixture f;
  f.client.post_launch(f.id, 0);
  f.client.post_launch(f.id, 1);
  proto::LaunchRecord cooperative{};
  cooperative.function = f.id;
  cooperative.grid_x = 1;
  cooperative.parameter_bytes = 8;
  cooperative.flags = proto::LaunchFlag::cooperative;
  const std::uint64_t argument = 2;
  f.client.post(cooperative, proto::kNullStream, std::as_bytes(std::span(&argument, 1)));
  f.client.post_launch(f.id, 3);
  f.client.post_launch(f.id, 4);
  f.client.turn();
  f.check_arguments(5);
  CHECK(f.shape() == Shape{2, 0, 2});
}

TEST_CASE("other operations end a run") {
  Fixture f;
  const std::uint64_t chunk = f.client.add_chunk(4096);
  f.client.post_launch(f.id, 0);
  f.client.post_launch(f.id, 1);
  f.client.post(proto::FillRecord{chunk, 0, 4, 1, 0, 4});
  f.client.post_launch(f.id, 2);
  f.client.post_launch(f.id, 3);
  f.client.turn(false);
  CHECK(f.shape() == Shape{2, 2});
  CHECK(f.executor.fake.calls()[2].kind == FakeCall::fill);
}

TEST_CASE("a driver without graphs gets plain launches") {
  Fixture f;
  f.executor.fake.has_graphs = false;
  for (std::uint64_t i = 0; i < 40; ++i) f.client.post_launch(f.id, i);
  f.client.post_fence(1);
  f.client.turn();
  f.check_arguments(40);
  CHECK(f.shape() == Shape(40, 0));
  CHECK(f.client.fence() == 1);
  CHECK(f.executor.parts->chains_refused.load());
}

TEST_CASE("a fence that comes when the words of the work before it are under way costs the GPU nothing") {
  Fixture f;
  f.executor.fake.hold_work();
  f.client.post_launch(f.id, 0);
  f.client.turn(false);  // with the progress word: nothing stands behind it
  CHECK(f.executor.fake.calls(FakeCall::write).size() == 1);
  f.client.post_fence(5);
  f.client.turn();
  f.client.turn();
  CHECK(f.executor.fake.calls(FakeCall::write).size() == 1);
  CHECK(f.client.fence() == 0);
  CHECK_FALSE(f.client.session().streams().is_idle());
  f.executor.fake.complete();
  f.client.turn();
  CHECK(f.client.fence() == 5);
  CHECK(f.client.session().streams().is_idle());
  f.client.post_fence(6);  // all has ended already
  f.client.turn(false);
  CHECK(f.client.fence() == 6);
  CHECK(f.executor.fake.calls(FakeCall::write).size() == 1);
}

TEST_CASE("a late fence never sets a word back that the GPU has written since") {
  Fixture f;
  f.executor.fake.hold_work();
  f.client.post_launch(f.id, 0);
  f.client.turn(false);
  f.client.post_fence(5);
  f.client.turn(false);
  f.client.post_launch(f.id, 1);
  f.client.post_fence(6);
  f.client.turn(false);
  CHECK(f.client.fence() == 0);
  f.executor.fake.complete();
  CHECK(f.client.fence() == 6);
  f.client.turn(false);
  CHECK(f.client.fence() == 6);
  CHECK(f.client.session().streams().is_idle());
  CHECK(f.executor.progress->stream[0].completed.load() == 4);
}

TEST_CASE("graphs are made in quiet windows, not when one is wanted") {
  Fixture f;
  const unsigned stock = f.executor.fake.graphs_made;
  f.executor.fake.hold_work();
  constexpr std::uint32_t kStreams = 60;  // more than are in stock for a launch and its words
  const auto post_to_all = [&](std::uint64_t argument) {
    for (std::uint32_t i = 1; i <= kStreams; ++i) f.client.post_launch(f.id, argument, proto::StreamId::make(i, 1));
    f.client.turn(false);
  };
  for (std::uint32_t i = 1; i <= kStreams; ++i) (void)f.client.add_stream(i);
  post_to_all(0);
  // A window that is asked for meanwhile holds the others up for a while.
  REQUIRE(eventually([&] {
    f.client.turn(false);
    return f.launches().size() == kStreams;
  }));
  CHECK(f.executor.fake.graphs_made == stock);  // the window cannot open: work is in flight
  const std::vector<std::size_t> shape = f.shape();
  CHECK(std::count(shape.begin(), shape.end(), 0) > 0);  // plainly, then
  f.executor.fake.resume_work();
  f.client.turn();
  const auto has_more = [&] { return f.executor.fake.graphs_made > stock + kStreams / 2; };
  for (int i = 0; i < 5'000 && !has_more(); ++i) {
    f.client.turn();  // streams that find too few ask again
    usleep(1'000);
    post_to_all(1);
  }
  CHECK(has_more());
}

TEST_CASE("a launch that needs more local memory than ever before waits for a window") {
  Fixture f;
  const proto::FunctionId big = f.client.add_function(f.function, 4096);
  f.client.post_launch(f.id, 0);
  f.client.post_launch(big, 1);
  f.client.post_launch(f.id, 2);
  const broker::StreamSet::Issue issue = f.client.turn();
  REQUIRE(issue.needs_window);
  CHECK(f.launches().size() == 1);
  const auto launch = issue.needs_window->take_window_launch();
  f.client.turn();
  CHECK(f.launches().size() == 1);
  issue.needs_window->launch_in_window(*launch);
  issue.needs_window->window_launch_done();
  f.client.turn();
  f.check_arguments(3);
  CHECK(f.executor.parts->local_bytes_high_water.load() == 4096);
  f.client.post_launch(big, 3);
  CHECK_FALSE(f.client.turn().needs_window);
  f.check_arguments(4);
}

}  // namespace mpsshim::test
