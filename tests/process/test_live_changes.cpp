// SPDX-License-Identifier: Apache-2.0
// What operators change for a client that is connected (`client set`): the part of the multiprocessors, in whatever way it launches and for what it
// has made before; device memory; priority. And how soon: the command has returned, and from then on it holds.
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "proto/handshake.hpp"
#include "proto/socket.hpp"
#include "tests/process/refused_start.hpp"
#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kPercentage = "--active-thread-percentage";
constexpr const char* kLimit = "--pinned-memory-limit";
constexpr const char* kPriority = "--client-priority";
constexpr const char* kKinds[] = {"null",  "kept_stream", "kept_graph",  "kept_changed", "kept_wide",
                                  "chain", "local",       "cooperative", "graph",        "green"};

std::string pid(Client& client) { return std::to_string(client.program().pid()); }

// Every way to launch is on the same multiprocessors, of that number, and so is what was made before.
std::set<unsigned> require_place(Client& client, unsigned multiprocessors) {
  CHECK(number(client, "count") == multiprocessors);
  CHECK(number(client, "affinity") == multiprocessors);
  const std::set<unsigned> own = where(client, "null");
  CHECK(are_its_own(own.size(), multiprocessors));
  for (const char* kind : kKinds) {
    INFO(kind);
    CHECK(std::ranges::includes(own, where(client, kind)));
  }
  return own;
}

// As mpsctl asks, without a process of its own.
std::string tell(const BrokerFixture& broker, const std::string& command) {
  const auto socket = mpsshim::proto::Socket::connect_to((broker.pipe_dir() / mpsshim::proto::kControlSocketName).string());
  REQUIRE(socket.valid());
  REQUIRE(socket.send(std::as_bytes(std::span(command))) == mpsshim::proto::SocketStatus::ok);
  std::array<std::byte, 4'096> buffer;
  std::size_t bytes = 0;
  mpsshim::proto::ReceivedFds fds;
  REQUIRE(socket.wait_readable(30'000));
  REQUIRE(socket.receive(buffer, bytes, fds) == mpsshim::proto::SocketStatus::ok);
  return {reinterpret_cast<const char*>(buffer.data()), bytes};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

TEST_CASE("a client that is connected gets another part of the multiprocessors, larger, smaller, and all of them again") {
  const BrokerFixture broker;
  Client client = start_with(broker, "share_client");
  Client other = start_with(broker, "share_client");
  const unsigned all = number(client, "count");
  (void)require_place(client, all);    // streams and graphs are made
  std::map<unsigned, unsigned> sizes;  // by percentage
  for (const unsigned percentage : {25u, 50u, 10u, 100u, 75u, 25u}) {
    INFO(percentage << " %");
    const Outcome end = broker.ctl({"client", "set", pid(client), kPercentage, std::to_string(percentage)});
    INFO(end.errors);
    REQUIRE(end.ok());
    CHECK(end.output.empty());
    sizes[percentage] = number(client, "count");
    (void)require_place(client, sizes[percentage]);
  }
  CHECK(sizes[100] == all);
  CHECK(sizes[50] <= all / 2);
  CHECK(sizes[25] < sizes[50]);
  CHECK(sizes[50] < sizes[75]);
  CHECK(sizes[75] < all);
  CHECK(where(other, "null").size() == all);  // its neighbour has what it had
  CHECK(number(other, "count") == all);
}

TEST_CASE("no node of a graph that is made anew for another part has to grow where the client's had not") {
  BrokerOptions options;
  options.driver = built_library("libfaulty_driver_grown_nodes.so");  // a node that grows runs with wrong parameters, which is printed
  const BrokerFixture broker(options);
  Client client = start_with(broker, "share_client");
  for (const unsigned percentage : {50u, 25u, 100u}) {
    const std::set<unsigned> wide = where(client, "kept_wide");
    CHECK(std::ranges::includes(where(client, "null"), wide));
    CHECK_FALSE(wide.empty());
    REQUIRE(broker.ctl({"client", "set", pid(client), kPercentage, std::to_string(percentage)}).ok());
  }
  (void)where(client, "kept_wide");
  INFO(broker.log());
  CHECK(broker.log().find("a node grew: ") == std::string::npos);
}

TEST_CASE("clients that are given smaller parts lie side by side") {
  const BrokerFixture broker;
  std::vector<Client> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(start_with(broker, "share_client"));
  for (Client& client : clients) REQUIRE(broker.ctl({"client", "set", pid(client), kPercentage, "25"}).ok());
  const std::set<unsigned> first = where(clients[0], "null");
  const std::set<unsigned> second = where(clients[1], "null");
  for (const unsigned one : first) CHECK_FALSE(second.contains(one));
  // Smaller in its own place, not on top of the other.
  REQUIRE(broker.ctl({"client", "set", pid(clients[1]), kPercentage, "10"}).ok());
  for (const unsigned one : where(clients[1], "null")) CHECK_FALSE(first.contains(one));
}

TEST_CASE("a change holds within 10 ms while the client is at work, of all that can be changed, for one client and for a group") {
  const BrokerFixture broker;
  REQUIRE(broker.ctl({"namespace", "create", "batch"}).ok());
  Client client = start_with(broker, "share_client", {{"MPSSHIM_GROUP", "batch"}});
  const unsigned all = number(client, "count");
  const std::string one = "client set " + pid(client) + ' ', group = "namespace set batch ";
  const struct {
    std::string command;
    const char *first, *second;
  } changes[] = {
      {one + kPercentage, "25", "100"},
      {one + kPriority, "1", "0"},
      {one + kLimit, "64M", "none"},
      {group + kPercentage, "50", "100"},
      {group + kPriority, "1", "0"},
      {group + kLimit, "128M", "none"},
      {group + "--pinned-memory-request", "64M", "none"},
  };
  for (const auto& change : changes) {
    INFO(change.command);
    std::vector<double> taken;
    client.begin("brief 1000");
    for (int turn = 0; turn < 20; ++turn) {
      const Clock::time_point begin = Clock::now();
      REQUIRE(tell(broker, change.command + ' ' + (turn % 2 == 0 ? change.first : change.second)) == "ok\n");
      taken.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    CHECK(client.answer(std::chrono::seconds(60)).starts_with("ok "));
    WARN(change.command << ": " << median(taken) << " ms (median of " << taken.size() << "), at the longest " << *std::ranges::max_element(taken)
                        << " ms");
    CHECK(median(taken) < 10);
  }
  CHECK(where(client, "kept_stream").size() == all);
}

TEST_CASE("what was changed stays over the executor's death and the broker's restart") {
  const BrokerFixture broker;
  Client client = start_with(broker, "share_client", {{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"}});
  const unsigned quarter = number(client, "count");
  REQUIRE(broker.ctl({"client", "set", pid(client), kPercentage, "50"}).ok());  // what operators say goes above what it has asked for
  const unsigned half = number(client, "count");
  CHECK(half > quarter);
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  (void)require_place(client, half);
  REQUIRE(broker.ctl({"restart"}).ok());
  (void)require_place(client, half);
}

TEST_CASE("a part that needs a moment without kernels comes beside one that does not end, by another executor") {
  BrokerOptions options;
  options.arguments = {"--executors", "2"};
  const BrokerFixture broker(options);
  Client endless = start_with(broker, "share_client");
  Client client = start_with(broker, "share_client");
  const unsigned all = number(client, "count");
  REQUIRE(endless.ask("spin") == "ok");
  const Outcome end = broker.ctl({"client", "set", pid(client), kPercentage, "25"});
  INFO(end.errors);
  REQUIRE(end.ok());
  CHECK(number(client, "count") < all);
  CHECK(where(client, "chain").size() == number(client, "count"));
}

TEST_CASE("a part that is ready comes at once beside a kernel that does not end, and clients that have one lie side by side") {
  BrokerOptions options;
  options.arguments = {"--executors", "1", "--ready-percentages", "25,75,12.5"};
  const BrokerFixture broker(options);
  Client endless = start_with(broker, "share_client");
  Client client = start_with(broker, "share_client");
  Client other = start_with(broker, "share_client");
  const unsigned all = number(client, "count");
  for (Client* each : {&client, &other}) CHECK(where(*each, "null").size() == all);
  REQUIRE(broker.ctl({"client", "set", pid(other), kPercentage, "1"}).ok());  // the first part, so that the first that are free are not ready
  REQUIRE(endless.ask("spin") == "ok");
  std::vector<double> taken;
  std::map<std::string, std::set<unsigned>> places;
  for (const char* percentage : {"25", "75", "12.5", "100", "25"}) {
    INFO(percentage << " %");
    const Clock::time_point begin = Clock::now();
    REQUIRE(tell(broker, "client set " + pid(client) + ' ' + kPercentage + ' ' + percentage) == "ok\n");
    taken.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    places[percentage] = where(client, "null");
    CHECK(are_its_own(places[percentage].size(), number(client, "count")));
  }
  INFO("median " << median(taken) << " ms, longest " << *std::ranges::max_element(taken) << " ms");
  CHECK(median(taken) < 10);
  CHECK(places["12.5"].size() < places["25"].size());
  CHECK(places["25"].size() < places["75"].size());
  CHECK(places["75"].size() < all);
  for (const auto& [who, percentage] :
       std::vector<std::pair<Client*, std::string>>{{&other, "100"}, {&client, "100"}, {&client, "25"}, {&other, "75"}}) {
    REQUIRE(broker.ctl({"client", "set", pid(*who), kPercentage, percentage}).ok());
  }
  const std::set<unsigned> quarter = where(client, "null");
  for (const unsigned one : where(other, "null")) CHECK_FALSE(quarter.contains(one));
}

TEST_CASE("a broker that is to have parts ready for no percentages does not begin, and says so in one line") {
  struct Mistake {
    std::vector<std::string> arguments;
    std::string line;
  };
  const std::vector<Mistake> mistakes{
      {{"--ready-percentages", "25;50"}, "--ready-percentages \"25;50\" is no list of percentages below 100, such as 25,50"},
      {{"--ready-percentages", "25", "-S"}, "--ready-percentages means nothing with --static-partitioning: leave one of them out"},
  };
  for (const Mistake& mistake : mistakes) {
    const Outcome outcome = try_to_begin(mistake.arguments);
    INFO(outcome.explain());
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.errors.find(mistake.line) != std::string::npos);
    CHECK(std::ranges::count(outcome.errors, '\n') == 1);
  }
}

TEST_CASE("device memory of a connected client: a limit comes, is raised, and goes") {
  const BrokerFixture broker;
  Client client = start_with(broker, "memory_client");
  const unsigned all = number(client, "total");
  REQUIRE(client.ask("take 100") == "ok");
  REQUIRE(broker.ctl({"client", "set", pid(client), kLimit, "64M"}).ok());
  CHECK(client.ask("total") == "ok 64");
  CHECK(client.ask("free") == "ok 0");
  CHECK(client.ask("take 2") == "2 CUDA_ERROR_OUT_OF_MEMORY");  // it keeps what it has
  REQUIRE(broker.ctl({"client", "set", pid(client), kLimit, "128M"}).ok());
  CHECK(client.ask("take 20") == "ok");
  CHECK(client.ask("take 20") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(client.ask("piece 20") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(client.ask("array 20") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  REQUIRE(broker.ctl({"client", "set", pid(client), kLimit, "none"}).ok());
  CHECK(client.ask("take 200") == "ok");
  CHECK(number(client, "total") == all);
}

TEST_CASE("priority of a connected client changes and is told") {
  const BrokerFixture broker;
  Client client = start_with(broker, "share_client");
  REQUIRE(broker.ctl({"client", "set", pid(client), kPriority, "1", "--device", "0"}).ok());
  CHECK(broker.log().find("a command gives it 100.0 % of the multiprocessors, device memory without a limit, priority 1") != std::string::npos);
  for (const char* kind : kKinds) CHECK(client.ask(std::string("where ") + kind, std::chrono::seconds(60)).starts_with("ok 0 "));
  REQUIRE(broker.ctl({"client", "set", pid(client), kPriority, "0"}).ok());
  CHECK(client.ask("where chain").starts_with("ok 0 "));
  CHECK(client.program().errors().empty());
}

TEST_CASE("clients of a group have its part of the multiprocessors among them, and its device memory") {
  const BrokerFixture broker;
  const std::map<std::string, std::string> in_group{{"MPSSHIM_GROUP", "batch"}};
  REQUIRE(broker.ctl({"namespace", "create", "batch"}).ok());
  REQUIRE(broker.ctl({"namespace", "set", "batch", kPercentage, "50", kLimit, "128M"}).ok());
  Client first = start_with(broker, "share_client", in_group);
  Client second = start_with(broker, "share_client", in_group);
  Client other = start_with(broker, "share_client");
  const std::set<unsigned> place = require_place(first, number(first, "count"));
  CHECK(number(first, "count") < number(other, "count"));
  CHECK(where(second, "null") == place);  // the same: what one leaves idle the other has
  CHECK(where(other, "null").size() == number(other, "count"));
  // One that asks for less has less, within it.
  Client less = start_with(broker, "share_client", {{"MPSSHIM_GROUP", "batch"}, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"}});
  const std::set<unsigned> own = where(less, "chain");
  CHECK(own.size() == number(less, "count"));
  CHECK(own.size() < place.size());
  CHECK(std::ranges::includes(place, own));
  // Smaller for all of them, while they are connected.
  REQUIRE(broker.ctl({"namespace", "set", "batch", kPercentage, "25"}).ok());
  const std::set<unsigned> smaller = require_place(first, number(first, "count"));
  CHECK(smaller.size() < place.size());
  CHECK(where(second, "kept_stream") == smaller);
  REQUIRE(broker.ctl({"namespace", "set", "batch", kPercentage, "100"}).ok());
  CHECK(where(second, "null").size() == number(other, "count"));

  Client holder = start_with(broker, "memory_client", in_group);
  Client taker = start_with(broker, "memory_client", in_group);
  CHECK(holder.ask("total") == "ok 128");
  REQUIRE(holder.ask("take 80") == "ok");
  CHECK(taker.ask("take 60") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(taker.ask("take 20") == "ok");
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(taker.ask("take 60") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  REQUIRE(broker.ctl({"namespace", "set", "batch", kLimit, "none"}).ok());
  CHECK(taker.ask("take 60") == "ok");
}

TEST_CASE("device memory that is kept for a group is there when its clients come, also after a restart, and for all once it is not kept") {
  const BrokerFixture broker;
  Client other = start_with(broker, "memory_client");
  const unsigned total_mib = number(other, "total");
  REQUIRE(total_mib > 600);
  REQUIRE(broker.ctl({"namespace", "create", "kept"}).ok());
  REQUIRE(broker.ctl({"namespace", "set", "kept", "--pinned-memory-request", std::to_string(total_mib - 200) + "M"}).ok());
  CHECK(other.ask("take 300") == "2 CUDA_ERROR_OUT_OF_MEMORY");  // it was connected before
  CHECK(other.ask("take 100") == "ok");
  Client late = start_with(broker, "memory_client");
  CHECK(late.ask("take 150") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(broker.log().find("is kept for other namespaces (namespace set --pinned-memory-request)") != std::string::npos);
  Client inside = start_with(broker, "memory_client", {{"MPSSHIM_GROUP", "kept"}});
  CHECK(inside.ask("take 300") == "ok");
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(late.ask("take 150") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(late.ask("take 20") == "ok");
  REQUIRE(broker.ctl({"namespace", "set", "kept", "--pinned-memory-request", "none"}).ok());
  CHECK(late.ask("take 150") == "ok");
}
