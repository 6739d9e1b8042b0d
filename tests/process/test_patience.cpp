// SPDX-License-Identifier: Apache-2.0
// Another client's long kernel: whoever needs a moment without kernels meanwhile goes to another executor with all it has, or waits until that
// kernel has ended. Nobody gets an error for what would have ended by itself.
#include <cmath>
#include <csignal>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr std::chrono::milliseconds kLong(4'500);  // longer than a session is asked to come to rest for, twice
constexpr std::chrono::milliseconds kInTime(20'000);

BrokerOptions with(std::vector<std::string> arguments) {
  BrokerOptions options;
  options.arguments = std::move(arguments);
  return options;
}

Client start(const BrokerFixture& broker) { return Client(broker, "moving_client"); }

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer == "ok");
}

// Begins `command` beside a kernel of another client's, which ends after kLong.
void require_ok_beside(Client& other, Client& client, const std::string& command, const BrokerFixture& broker) {
  require_ok(other, "run", broker);
  client.begin(command);
  const std::string early = client.answer(kLong);
  INFO(early << broker.log());
  REQUIRE(early.rfind("no answer", 0) == 0);
  require_ok(other, "end", broker);
  const std::string answer = client.answer(kInTime);
  INFO(answer << client.program().errors() << broker.log());
  REQUIRE(answer == "ok");
}

// Behind "ok"; none of another answer.
std::vector<double> numbers(const std::string& answer) {
  std::istringstream words(answer);
  std::string ok;
  std::vector<double> list;
  words >> ok;
  for (double number = 0; ok == "ok" && words >> number;) list.push_back(number);
  return list;
}

// What the client's command "time" or "elapsed" answered: the pair's time, and that from the second to the first.
double elapsed(const std::string& answer) {
  const std::vector<double> both = numbers(answer);
  INFO(answer);
  REQUIRE(both.size() == 2);
  CHECK(std::abs(both[0] + both[1]) < 0.001);
  return both[0];
}

void require_times_are(Client& client, const std::string& before, const BrokerFixture& broker) {
  const std::string after = client.ask("elapsed");
  INFO(before << " was, now " << after << "\n" << client.program().errors() << broker.log());
  CHECK(std::abs(elapsed(after) - elapsed(before)) < 0.001);
  const std::string since = client.ask("since");
  INFO(since);
  const std::vector<double> times = numbers(since);
  REQUIRE(times.size() == 3);
  const double tolerance_ms = on_gpu() ? 0.2 : 30;  // the CPU driver's completions wait for a core
  CHECK(times[0] > times[1] - tolerance_ms);
  CHECK(times[0] < times[2] + tolerance_ms);
}

}  // namespace

TEST_CASE("with one executor a call waits until another client's kernel has ended") {
  const BrokerFixture broker(with({"--executors", "1"}));
  Client other = start(broker), client = start(broker);
  require_ok(client, "hold", broker);
  require_ok_beside(other, client, "load", broker);
  require_ok(client, "check", broker);
  REQUIRE(broker.servers().size() == 1);
}

TEST_CASE("a launch that needs more local memory than any before waits until another client's kernel has ended") {
  const BrokerFixture broker;
  Client other = start(broker), client = start(broker);
  require_ok(client, "deep", broker);  // loaded
  require_ok_beside(other, client, "deep", broker);
  REQUIRE(broker.servers().size() == 1);  // nobody could have moved: no other executor was started
}

TEST_CASE("a client with what cannot go to another executor waits, and keeps it") {
  const BrokerFixture broker;
  Client other = start(broker), client = start(broker);
  SECTION("an array") {
    require_ok(client, "array", broker);
    require_ok_beside(other, client, "load", broker);
    require_ok(client, "check_array", broker);
  }
  SECTION("a texture") {
    require_ok(client, "texture", broker);
    require_ok_beside(other, client, "load", broker);
  }
  REQUIRE(broker.servers().size() == 1);
}

TEST_CASE("kernels that take turns for ever do not keep a call waiting for ever") {
  const BrokerFixture broker(with({"--executors", "1"}));
  Client other = start(broker), client = start(broker);
  require_ok(other, "chain", broker);
  require_ok(client, "load", broker);
  require_ok(other, "unchain", broker);
}

TEST_CASE("a kernel that does not end is waited for as long as the broker was told") {
  const BrokerFixture broker(with({"--executors", "1", "--patience-s", "3"}));
  Client other = start(broker), client = start(broker);
  require_ok(client, "hold", broker);
  require_ok(other, "run", broker);
  const auto began = std::chrono::steady_clock::now();
  const std::string answer = client.ask("load");
  INFO(answer << broker.log());
  CHECK(is_mps_error(answer));
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::seconds(3));
  require_ok(client, "check", broker);
  require_ok(other, "end", broker);
  require_ok(client, "load", broker);
}

TEST_CASE("a restart that does not come about costs a waiting call nothing") {
  const BrokerFixture broker(with({"--executors", "1"}));
  Client other = start(broker), client = start(broker);
  require_ok(other, "run", broker);
  client.begin("load");
  const Outcome restart = broker.ctl({"restart", "executors", "-t", "1"});
  INFO(restart.explain());
  REQUIRE_FALSE(restart.ok());
  require_ok(other, "end", broker);
  const std::string answer = client.answer(kInTime);
  INFO(answer << broker.log());
  REQUIRE(answer == "ok");
}

TEST_CASE("events keep their times when their client moves") {
  const BrokerFixture broker;
  Client other = start(broker), client = start(broker);
  const std::string before = client.ask("time");
  REQUIRE(elapsed(before) >= 30);
  require_ok(other, "run", broker);
  require_ok(client, "load", broker);
  REQUIRE(broker.servers().size() == 2);
  require_times_are(client, before, broker);
  SECTION("recorded anew they have new ones") {
    const std::string again = client.ask("time");
    REQUIRE(elapsed(again) >= 30);
    REQUIRE(client.ask("elapsed") == again);
  }
  SECTION("and the next time") {
    const Outcome restart = broker.ctl({"restart", "executors", "-f", "-t", "2"});
    INFO(restart.explain() << broker.log());
    REQUIRE(restart.ok());
    require_times_are(client, before, broker);
  }
}

TEST_CASE("events keep their times when the executors, or the broker, are restarted") {
  BrokerFixture broker;
  Client client = start(broker);
  const std::string before = client.ask("time");
  const bool all = GENERATE(false, true);
  const Outcome restart = all ? broker.ctl({"restart"}) : broker.ctl({"restart", "executors"});
  INFO(restart.explain() << broker.log());
  REQUIRE(restart.ok());
  require_times_are(client, before, broker);
}

TEST_CASE("events keep their times when what a killed client has left running costs the executor") {
  const BrokerFixture broker(with({"--executors", "1"}));
  Client client = start(broker);
  std::string before = client.ask("time");
  for (int round = 0; round < 3; ++round) {
    const pid_t server = broker.servers().at(0);
    Client other = start(broker);
    require_ok(other, "run", broker);
    if (round == 1) before = client.ask("time");  // beside the kernel
    REQUIRE(elapsed(before) >= 30);
    other.program().send(SIGKILL);
    INFO(broker.log());
    REQUIRE(eventually(kInTime, [&] { return broker.log().find("its work still runs after", 0) != std::string::npos; }));
    require_times_are(client, before, broker);
    REQUIRE(eventually(kInTime, [&] { return broker.servers().at(0) != server; }));
    require_times_are(client, before, broker);
  }
}
