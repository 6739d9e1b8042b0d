// SPDX-License-Identifier: Apache-2.0
// Launches that wait a moment for more of them, and the graphs that they go into.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "broker/executor/streams/gathering.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/chain_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

namespace {

using Fixture = ChainFixture;
using Shape = std::vector<std::size_t>;

}  // namespace

TEST_CASE("gathered launches go out when a fence comes behind them, or a moment later") {
  Fixture f;
  f.executor.parts->stress.gather = 1;
  std::uint64_t posted = 0;
  const auto post = [&](int count) {
    for (int i = 0; i < count; ++i) f.client.post_launch(f.id, posted++);
    f.client.turn();
  };
  post(2);
  CHECK(f.launches().empty());
  post(1);
  f.client.post_fence(5);
  f.client.turn();
  CHECK(f.shape() == Shape{3});
  CHECK(f.client.fence() == 5);
  post(2);
  CHECK(f.launches().size() == 3);
  std::this_thread::sleep_for(broker::Gathering::kLongest);
  f.client.turn();
  CHECK(f.shape() == Shape{3, 2});
  post(4);
  post(8);  // more than a piece: what is left waits again
  CHECK(f.launches().size() < posted);
  std::this_thread::sleep_for(broker::Gathering::kLongest);
  f.client.turn();
  f.check_arguments(posted);
}

TEST_CASE("launches are gathered of who seldom waits, and only where the worker is short of time") {
  Fixture f;
  std::uint64_t posted = 0;
  const auto post = [&](int count) {
    for (int i = 0; i < count; ++i) f.client.post_launch(f.id, posted++);
    f.client.turn();
    return f.launches().size() == posted;
  };
  f.client.is_short_of_time = true;
  for (std::uint32_t round = 1; round < 40; ++round) {
    CHECK(post(2));
    f.client.post_fence(round);
    f.client.turn();
  }
  while (posted < 150) (void)post(1);  // without a wait from now on
  std::this_thread::sleep_for(broker::Gathering::kLongest);
  f.client.turn();
  CHECK_FALSE(post(2));
  f.client.is_short_of_time = false;
  CHECK(post(2));
  f.check_arguments(posted);
}

TEST_CASE("gathered launches find graphs that have their functions") {
  const bool are_gathered = GENERATE(true, false);
  constexpr std::size_t kFunctions = 20;
  constexpr int kRounds = 60;
  WireExecutor executor;
  WireClient client(executor);
  std::vector<std::unique_ptr<FakeFunction>> functions;
  std::vector<proto::FunctionId> ids;
  for (std::size_t i = 0; i < kFunctions; ++i) {
    functions.push_back(std::make_unique<FakeFunction>(FakeFunction{"f" + std::to_string(i), {8}}));
    ids.push_back(client.add_function(*functions.back()));
  }
  executor.parts->stress.gather = are_gathered ? 1 : 0;
  std::uint64_t posted = 0;
  unsigned changed = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kRounds - 5) changed = executor.fake.other_functions;
    for (std::size_t i = 0; i < kFunctions; ++i) {
      client.post_launch(ids[i], posted++);
      if (posted % 3 == 0) client.turn();
    }
    if (round % 7 == 0) client.post_fence(static_cast<std::uint32_t>(round + 1));
    client.turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for windows that make graphs
  }
  changed = executor.fake.other_functions - changed;
  client.post_fence(1'000);
  client.turn();
  const std::vector<FakeCall> calls = executor.fake.calls(FakeCall::launch);
  REQUIRE(calls.size() == posted);
  for (std::uint64_t i = 0; i < posted; ++i) {
    REQUIRE(calls[i].function == functions[i % kFunctions].get());
    REQUIRE(std::memcmp(calls[i].parameters.data(), &i, 8) == 0);
  }
  INFO(changed << " nodes were given another function in five rounds of " << kFunctions << " launches");
  CHECK((changed < kFunctions) == are_gathered);
}
