// SPDX-License-Identifier: Apache-2.0
// The driver API, topic by topic (programs/topics.hpp), in programs of their own and several at once.
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

void require_right(const std::string& topic, const Outcome& outcome, const BrokerFixture& broker) {
  INFO(topic << ": " << outcome.explain() << "--- broker\n" << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output == topic + " right\n");
}

void run_topic(const std::string& topic) {
  const BrokerFixture broker;
  require_right(topic, broker.run("driver_topics", {topic}), broker);
  REQUIRE(broker.wait_for_clients(0));
}

Program start_topic(const BrokerFixture& broker, const std::string& topic) {
  ProgramOptions options;
  options.arguments = {topic};
  return broker.start("driver_topics", options);
}

}  // namespace

TEST_CASE("pageable copies, of 20 MB and of odd sizes") { run_topic("pageable_copies"); }
TEST_CASE("pinned memory, copied and worked on where it lies") { run_topic("pinned_memory"); }
TEST_CASE("memsets in one and two dimensions") { run_topic("memsets"); }
TEST_CASE("copies that tell host from device by the address") { run_topic("unified_copies"); }
TEST_CASE("facts of pointers") { run_topic("pointer_facts"); }
TEST_CASE("order between streams by events") { run_topic("stream_order"); }
TEST_CASE("order of the legacy stream") { run_topic("legacy_order"); }
TEST_CASE("events and their times") { run_topic("events"); }
TEST_CASE("hundreds of streams") { run_topic("many_streams"); }
TEST_CASE("per-thread streams") { run_topic("per_thread_streams"); }
TEST_CASE("many threads") { run_topic("many_threads"); }
TEST_CASE("streams that end while other threads wait for all") { run_topic("ending_streams"); }
TEST_CASE("modules and their variables") { run_topic("modules_and_globals"); }
TEST_CASE("launches that must be refused") { run_topic("refused_launches"); }
TEST_CASE("contexts") { run_topic("contexts"); }

TEST_CASE("several topics at once") {
  const BrokerFixture broker;
  std::vector<std::string> topics = {"pageable_copies", "pinned_memory", "stream_order", "many_streams", "many_threads"};
  // legacy_order has a kernel that waits for another stream's work. Beside many_streams, on a GPU, both may share a connection, where what
  // stands behind that kernel holds the other up for ever (docs/differences.md, "Streams side by side").
  if (!on_gpu()) topics.push_back("legacy_order");
  std::vector<Program> programs;
  for (const std::string& topic : topics) programs.push_back(start_topic(broker, topic));
  for (std::size_t i = 0; i < topics.size(); ++i) require_right(topics[i], programs[i].wait(std::chrono::seconds(90)), broker);
}
