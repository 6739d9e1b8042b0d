// SPDX-License-Identifier: Apache-2.0
// Programs that a broker with --probation-s does not know yet are served apart, and go to where the others are when they have done well.
#include <chrono>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr std::chrono::seconds kLimit{30};

BrokerOptions with(const std::string& seconds, std::vector<std::string> more = {}) {
  BrokerOptions options;
  options.arguments = {"--probation-s", seconds};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return options;
}

// The server that mpsctl lists for this client.
pid_t server_of(const BrokerFixture& broker, Client& client) {
  for (const pid_t server : broker.servers()) {
    const Outcome list = broker.ctl({"get_client_list", std::to_string(server)});
    if (("\n" + list.output).find("\n" + std::to_string(client.program().pid()) + "\n") != std::string::npos) return server;
  }
  return -1;
}

bool is_among_others(const BrokerFixture& broker, Client& client) { return server_of(broker, client) == broker.servers().at(0); }

void require_answer(Client& client, const std::string& command, const std::string& expected, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << broker.log());
  REQUIRE(answer == expected);
}

bool log_has(const BrokerFixture& broker, const std::string& text) {
  return eventually(kLimit, [&] { return broker.log().find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("a new program's fault is felt by new programs alone, who is known goes on") {
  const BrokerFixture broker(with("1"));
  Client known(broker, "memory_client");
  CHECK_FALSE(is_among_others(broker, known));
  require_answer(known, "hold", "ok", broker);
  require_answer(known, "launch", "ok", broker);
  INFO(broker.log());
  REQUIRE(eventually(kLimit, [&] { return is_among_others(broker, known); }));
  require_answer(known, "check", "ok", broker);  // it came along

  const pid_t first = broker.servers().at(0);
  Client guilty(broker);
  REQUIRE_FALSE(is_among_others(broker, guilty));
  REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  CHECK(broker.servers().at(0) == first);
  require_answer(known, "check", "ok", broker);
  require_answer(known, "launch", "ok", broker);
  Client known_again(broker, "memory_client");
  CHECK(is_among_others(broker, known_again));
  Client guilty_again(broker);
  CHECK_FALSE(is_among_others(broker, guilty_again));
}

TEST_CASE("a client that works all the time goes to where the others are, and has right results") {
  const BrokerFixture broker(with("4"));
  Client busy(broker, "pacing_client");
  CHECK_FALSE(is_among_others(broker, busy));
  const auto end = std::chrono::steady_clock::now() + kLimit;
  bool is_there = false;
  while (!is_there && std::chrono::steady_clock::now() < end) {
    busy.begin("work 1500");
    const std::string answer = busy.answer(kLimit);
    INFO(answer << "\n" << broker.log());
    REQUIRE(answer == "ok");
    is_there = is_among_others(broker, busy);
  }
  INFO(broker.log());
  CHECK(is_there);
  CHECK(busy.ask("report", kLimit).rfind("ok ", 0) == 0);  // compares every word
}

TEST_CASE("a program whose client has ended without an error is known, and is so behind a restart of the broker") {
  const BrokerFixture broker(with("100"));
  {
    Client good(broker, "memory_client");
    CHECK_FALSE(is_among_others(broker, good));
    require_answer(good, "hold", "ok", broker);
    require_answer(good, "launch", "ok", broker);
  }
  REQUIRE(log_has(broker, ": ended."));  // which a GPU takes longer for than to be off the list
  {
    Client again(broker, "memory_client");
    CHECK(is_among_others(broker, again));
    require_answer(again, "hold", "ok", broker);
    require_answer(again, "launch", "ok", broker);
  }
  INFO(broker.log());
  REQUIRE(broker.ctl({"restart"}).ok());
  Client behind(broker, "memory_client");
  CHECK(is_among_others(broker, behind));
  Client other(broker);
  CHECK_FALSE(is_among_others(broker, other));
}

TEST_CASE("where no further executor can be had new programs are served among the others, and the log says so") {
  const BrokerFixture broker(with("100", {"--executors", "1"}));
  Client newcomer(broker, "memory_client");
  CHECK(is_among_others(broker, newcomer));
  CHECK(log_has(broker, "should be on probation and is served among the others"));
  require_answer(newcomer, "hold", "ok", broker);
  require_answer(newcomer, "launch", "ok", broker);
}

TEST_CASE("what cannot go elsewhere stays where it was on probation, and the log says why") {
  const BrokerFixture broker(with("1"));
  Client other(broker, "memory_client");
  require_answer(other, "hold", "ok", broker);
  require_answer(other, "launch", "ok", broker);
  REQUIRE(eventually(kLimit, [&] { return is_among_others(broker, other); }));
  Client bound(broker, "moving_client");
  require_answer(bound, "array", "ok", broker);
  CHECK(log_has(broker, "because what it has cannot go to another executor"));
  CHECK_FALSE(is_among_others(broker, bound));
  require_answer(bound, "check_array", "ok", broker);
  Client known(broker, "moving_client");  // its program has done well all the same
  CHECK(is_among_others(broker, known));
}
