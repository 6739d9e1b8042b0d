// SPDX-License-Identifier: Apache-2.0
// What there is to see of clients at work (docs/seeing.md): counted by real executors, held against the clock.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

using Row = std::map<std::string, std::string>;

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream text(line);
  for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  return parts;
}

// What `ps` says of that client. Its command, which is last, may have commas.
Row row_of(const BrokerFixture& broker, pid_t pid) {
  const Outcome outcome = broker.ctl({"ps", "--csv"});
  std::istringstream lines(outcome.output);
  std::string line;
  REQUIRE(std::getline(lines, line));
  const std::vector<std::string> keys = fields(line);
  while (std::getline(lines, line)) {
    const std::vector<std::string> values = fields(line);
    if (values.front() != std::to_string(pid)) continue;
    REQUIRE(values.size() >= keys.size());
    Row row;
    for (std::size_t i = 0; i < keys.size(); ++i) row[keys[i]] = values[i];
    return row;
  }
  INFO(outcome.explain());
  FAIL("the client is not listed");
  return {};
}

double milliseconds_of(const Row& row, const std::string& key) { return std::atof(row.at(key).c_str()) / (key.ends_with("_us") ? 1e3 : 1); }
long number_of(const Row& row, const std::string& key) { return std::atol(row.at(key).c_str()); }

Row row_of(const BrokerFixture& broker, Client& client) { return row_of(broker, client.program().pid()); }

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer.rfind("ok", 0) == 0);
}

// Of the time between two looks the share that `figure` has grown by.
double share_of(const char* figure, const BrokerFixture& broker, Client& client, std::chrono::milliseconds between) {
  const Row before = row_of(broker, client);
  std::this_thread::sleep_for(between);
  const Row after = row_of(broker, client);
  return (milliseconds_of(after, figure) - milliseconds_of(before, figure)) / (milliseconds_of(after, "age_ms") - milliseconds_of(before, "age_ms"));
}

double busy_share(const BrokerFixture& broker, Client& client, std::chrono::milliseconds between) {
  return share_of("gpu_time_us", broker, client, between);
}

}  // namespace

TEST_CASE("seeing: a kernel that goes on is GPU time and in flight, of its own client alone") {
  const BrokerFixture broker;
  Client spinning(broker), idle(broker);
  require_ok(idle, "storm 100", broker);
  require_ok(spinning, "spin", broker);
  CHECK(busy_share(broker, spinning, std::chrono::seconds(2)) == Approx(1).margin(0.05));
  CHECK(busy_share(broker, idle, std::chrono::seconds(1)) == Approx(0).margin(0.001));
  CHECK(number_of(row_of(broker, spinning), "in_flight") > 0);
  CHECK(number_of(row_of(broker, idle), "in_flight") == 0);
}

TEST_CASE("seeing: a thread that sleeps until its work has ended is one wait, and waits all the time, before it is over") {
  const BrokerFixture broker;
  Client sleeping(broker), working(broker);
  require_ok(working, "spin", broker);  // has work, and waits for nothing
  require_ok(sleeping, "spin", broker);
  std::this_thread::sleep_for(std::chrono::milliseconds(1'200));  // until waits that were too short to sleep are counted
  const long before = number_of(row_of(broker, sleeping), "waits");
  sleeping.begin("fill 1");  // behind the kernel that does not end
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return number_of(row_of(broker, sleeping), "waits") > before; }));
  CHECK(share_of("wait_time_us", broker, sleeping, std::chrono::seconds(2)) == Approx(1).margin(0.05));
  CHECK(number_of(row_of(broker, sleeping), "waits") == before + 1);
  CHECK(share_of("wait_time_us", broker, working, std::chrono::seconds(1)) == Approx(0).margin(0.001));
}

TEST_CASE("seeing: launches are counted one by one, and stay when a stream goes back or the executor is another one") {
  const BrokerFixture broker;
  Client client(broker);
  require_ok(client, "hold", broker);
  const Row before = row_of(broker, client);
  std::string answer = client.ask("storm 400");
  INFO(answer << broker.log());
  REQUIRE(answer.rfind("ok ", 0) == 0);
  const long launched = 50 * std::atol(answer.c_str() + 3);
  Row after = row_of(broker, client);
  CHECK(number_of(after, "launches") - number_of(before, "launches") == launched);
  CHECK(milliseconds_of(after, "gpu_time_us") > milliseconds_of(before, "gpu_time_us"));
  CHECK(milliseconds_of(after, "gpu_time_us") < milliseconds_of(after, "age_ms"));
  REQUIRE(broker.ctl({"restart", "executors"}).ok());
  const Row in_next = row_of(broker, client);
  CHECK(in_next.at("server") == after.at("server"));
  CHECK(in_next.at("server_pid") != after.at("server_pid"));
  CHECK(in_next.at("launches") == after.at("launches"));
  CHECK(number_of(in_next, "gpu_time_us") >= number_of(after, "gpu_time_us"));
  require_ok(client, "storm 100", broker);
  after = row_of(broker, client);
  CHECK(number_of(after, "launches") > number_of(in_next, "launches"));
  REQUIRE(broker.ctl({"restart"}).ok());
  const Row in_next_program = row_of(broker, client);
  CHECK(in_next_program.at("launches") == after.at("launches"));
  CHECK(number_of(after, "waits") > 0);
  CHECK(number_of(in_next_program, "waits") >= number_of(after, "waits"));
  CHECK(number_of(in_next_program, "wait_time_us") >= number_of(after, "wait_time_us"));
  CHECK(number_of(in_next_program, "gpu_time_us") >= number_of(after, "gpu_time_us"));
  CHECK(number_of(in_next_program, "age_ms") >= number_of(after, "age_ms"));
}
