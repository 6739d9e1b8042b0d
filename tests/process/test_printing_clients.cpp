// SPDX-License-Identifier: Apache-2.0
// What kernels print comes on the standard output of the client whose kernels they are, whole, in order, and before a call that waits for them
// returns; what fails in an assertion, on the standard error of the client that is guilty.
#include <csignal>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

Program start(const BrokerFixture& broker, const std::vector<std::string>& arguments) {
  ProgramOptions options;
  options.arguments = arguments;
  return broker.start("printing_client", options);
}

// As printing_client.cpp says.
std::string expected_text(unsigned client, unsigned launches, unsigned lines) {
  const std::string name = "client " + std::to_string(client) + ": ";
  std::string text;
  for (unsigned turn = 0; turn < launches; ++turn) {
    for (unsigned line = 0; line < lines; ++line) text += name + "launch " + std::to_string(turn) + ", line " + std::to_string(line) + "\n";
    if (turn % 4 != 3) text += name + "waited " + std::to_string(turn) + "\n";
  }
  return text + name + "done\n";
}

// Where they part, so that a failure shows that and not a page of lines.
std::string first_difference(const std::string& seen, const std::string& wanted) {
  std::size_t at = 0;
  while (at < seen.size() && at < wanted.size() && seen[at] == wanted[at]) ++at;
  if (at == seen.size() && at == wanted.size()) return "";
  return "at byte " + std::to_string(at) + ": \"" + seen.substr(at, 80) + "\" for \"" + wanted.substr(at, 80) + "\"";
}

}  // namespace

TEST_CASE("a client's kernels print where its own printf() does, in order with it") {
  const BrokerFixture broker;
  const Outcome one = broker.run("printing_client", {"1", "12", "3"});
  INFO(one.explain() << broker.log());
  REQUIRE(one.ok());
  CHECK(first_difference(one.output, expected_text(1, 12, 3)) == "");
}

TEST_CASE("clients that print at once get their own lines, all of them and in order") {
  const BrokerFixture broker;
  constexpr unsigned kClients = 4;
  std::vector<Program> clients;
  for (unsigned i = 0; i < kClients; ++i) clients.push_back(start(broker, {std::to_string(i), "40", "25"}));
  for (unsigned i = 0; i < kClients; ++i) {
    const Outcome& outcome = clients[i].wait();
    INFO(outcome.explain() << broker.log());
    REQUIRE(outcome.ok());
    CHECK(first_difference(outcome.output, expected_text(i, 40, 25)) == "");
  }
  CHECK(broker.log().find("they are nobody's") == std::string::npos);
}

TEST_CASE("more text than a message holds comes whole") {
  const BrokerFixture broker;
  const Outcome one = broker.run("printing_client", {"9", "2", "6000"});
  INFO(broker.log());
  REQUIRE(one.ok());
  CHECK(first_difference(one.output, expected_text(9, 2, 6000)) == "");
}

TEST_CASE("a client that is killed while it prints takes nothing of the others' text along") {
  const BrokerFixture broker;
  Program lasting = start(broker, {"1", "200", "20"});
  for (unsigned i = 0; i < 5; ++i) {
    Program killed = start(broker, {"2", "100000", "20"});
    REQUIRE(killed.wait_for_output("launch 3, line 7", std::chrono::seconds(30)));
    killed.send(SIGKILL);
    (void)killed.wait();
    CHECK(killed.output().find("client 1") == std::string::npos);
  }
  const Outcome& outcome = lasting.wait();
  INFO(broker.log());
  REQUIRE(outcome.ok());
  CHECK(first_difference(outcome.output, expected_text(1, 200, 20)) == "");
}

TEST_CASE("the text of an assertion that has ended its executor comes on the guilty client's standard error") {
  BrokerOptions options;
  options.arguments = {"--fatal-assertions"};
  const BrokerFixture broker(options);
  Client bystander(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  const Outcome guilty = broker.run("printing_client", {"7", "assert"});
  INFO(guilty.explain() << broker.log());
  REQUIRE(guilty.ok());
  CHECK(guilty.output == "client 7: launch 0, line 0\n");
  CHECK(guilty.errors.find("code.cu:7: fail: block: [0,0,0], thread: [0,0,0] Assertion `false` failed.\n") != std::string::npos);
  CHECK(bystander.ask("check") == "ok");
}

// Replicas of one program: the same kernel of the same image. One asserts, and that one alone is told.
TEST_CASE("a failed assertion costs its own client alone, and no executor, also among replicas that are at work") {
  const BrokerFixture broker;
  Client idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  const auto executors = broker.servers();
  Program busy = start(broker, {"3", "hold", "3000"});
  for (int turn = 0; turn < 3; ++turn) {
    const Outcome guilty = broker.run("printing_client", {"7", "assert"});
    INFO(guilty.explain() << broker.log());
    REQUIRE(guilty.ok());
    CHECK(guilty.errors.find("code.cu:7: fail: block: [0,0,0], thread: [0,0,0] Assertion `false` failed.\n") != std::string::npos);
  }
  const Outcome& outcome = busy.wait();
  INFO(outcome.explain() << broker.log());
  CHECK(outcome.ok());
  CHECK(outcome.errors.find("Assertion") == std::string::npos);
  CHECK(idle.ask("check") == "ok");
  CHECK(broker.servers() == executors);
}

// More than an executor has functions for (Assertions): those of copies that nobody uses are taken back.
TEST_CASE("a failed assertion ends no executor however many images have been loaded before") {
  const BrokerFixture broker;
  Client idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  const auto executors = broker.servers();
  const Outcome guilty = broker.run("printing_client", {"7", "images", "600"});
  INFO(guilty.explain() << broker.log());
  REQUIRE(guilty.ok());
  CHECK(guilty.errors.find("Assertion `false` failed.\n") != std::string::npos);
  CHECK(idle.ask("check") == "ok");
  CHECK(broker.servers() == executors);
}
