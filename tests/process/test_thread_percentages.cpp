// SPDX-License-Identifier: Apache-2.0
// Active thread percentages by the manual's rules: a default, a server's, a client's own; the lower of the last two holds. A client is told how many
// multiprocessors it has, and all its kernels run on so many, in whatever way it launches them. On the CPU driver %smid goes round a stream's
// multiprocessors; on a GPU it is where a block runs.
#include <signal.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "proto/provision.hpp"
#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;
using mpsshim::proto::provisioned_multiprocessors;

namespace {

constexpr const char* kVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
constexpr const char* kKinds[] = {"null", "blocking", "free", "urgent", "chain", "local", "cooperative", "graph", "changed", "green"};

Client start(const BrokerFixture& broker, const std::map<std::string, std::string>& environment = {}) {
  return start_with(broker, "share_client", environment);
}

std::string server(const BrokerFixture& broker) {
  const std::string text = broker.ctl({"get_server_list"}).output;
  return text.substr(0, text.find('\n'));
}

// Of the device, and what a percentage of it comes to.
struct Size {
  unsigned all = 0;
  int major = 0;
  [[nodiscard]] unsigned of(double percentage) const {
    return provisioned_multiprocessors(all, major, static_cast<std::uint32_t>(percentage * 100 + 0.5));
  }
};

Size size_of(const BrokerFixture& broker) {
  Size size;
  REQUIRE(eventually(std::chrono::seconds(30), [&] {
    const std::string line = broker.ctl({"device_query", "--format=csv,noheader"}).output;  // index,PCI,UUID,memory,multiprocessors,capability,name
    std::istringstream cells(line);
    std::vector<std::string> found;
    for (std::string cell; std::getline(cells, cell, ',');) found.push_back(cell);
    if (found.size() < 6) return false;
    size.all = static_cast<unsigned>(std::stoul(found[4]));
    size.major = std::stoi(found[5]);
    return true;
  }));
  return size;
}

void require_share(Client& client, unsigned multiprocessors) {
  CHECK(number(client, "count") == multiprocessors);
  CHECK(number(client, "affinity") == multiprocessors);
  CHECK(are_its_own(number(client, "resource"), multiprocessors));
}

// Every way to launch stays on the same multiprocessors, and uses them all.
std::set<unsigned> require_confined(Client& client, unsigned multiprocessors) {
  const std::set<unsigned> own = where(client, "null");
  CHECK(are_its_own(own.size(), multiprocessors));
  for (const char* kind : kKinds) {
    INFO(kind);
    const std::set<unsigned> seen = where(client, kind);
    CHECK(std::ranges::includes(own, seen));
    if (std::string(kind) == "green") CHECK(seen.size() < std::max(own.size(), std::size_t{3}));
  }
  return own;
}

// Of all parts together: the driver leaves multiprocessors over, on one H200 more than on another. The executor tells once it has parted them.
unsigned parted_multiprocessors(const BrokerFixture& broker) {
  const std::string log = broker.log();
  const std::regex line(R"(Parts [\d ]+ of (\d+) with (\d+) multiprocessors each)");
  std::smatch found;
  INFO(log);
  REQUIRE(std::regex_search(log, found, line));
  return static_cast<unsigned>(std::stoul(found[1]) * std::stoul(found[2]));
}

}  // namespace

TEST_CASE("a client has the part of the multiprocessors that it asks for, in whatever way it launches, and its neighbour all of them") {
  const BrokerFixture broker;
  const Size size = size_of(broker);
  Client quarter = start(broker, {{kVariable, "25"}});
  Client all = start(broker);
  require_share(quarter, size.of(25));
  require_share(all, size.all);
  (void)require_confined(quarter, size.of(25));
  CHECK(where(all, "chain").size() > size.of(25));
  CHECK(quarter.ask("too_many").find("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE") != std::string::npos);
}

TEST_CASE("clients with a part each lie side by side as long as there is room, then on top of each other") {
  const BrokerFixture broker;
  const Size size = size_of(broker);
  std::vector<Client> clients;
  std::vector<std::set<unsigned>> places;
  std::set<unsigned> taken;
  unsigned room = 0;
  for (unsigned i = 0; i < 4; ++i) {
    clients.push_back(start(broker, {{kVariable, "25"}}));
    places.push_back(where(clients.back(), "chain"));
    if (i == 0) room = parted_multiprocessors(broker) / size.of(25);
    REQUIRE(room >= 3);
    if (i < std::min(room, 4u)) {
      for (const unsigned one : places.back()) CHECK(taken.insert(one).second);
    }
  }
  Client fifth = start(broker, {{kVariable, "25"}});
  CHECK(std::ranges::find(places, where(fifth, "chain")) != places.end());
  clients.erase(clients.begin() + 1);  // its place is free again, once it has gone
  REQUIRE(eventually(std::chrono::seconds(30), [&] {
    Client next = start(broker, {{kVariable, "25"}});
    return where(next, "null") == places[1];
  }));
}

TEST_CASE("what the device's parts leave over is a part as well, so clients that may have all of it together share nothing") {
  BrokerOptions options;
  options.environment = {{"MPSSHIM_CPU_UNEVEN", "1"}};
  const BrokerFixture broker(options);
  if (on_gpu()) MPSSHIM_SKIP("how a GPU is cut is its own affair");
  const Size size = size_of(broker);
  Client most = start(broker, {{kVariable, "75"}});
  Client quarter = start(broker, {{kVariable, "25"}});
  require_share(most, size.of(75));
  require_share(quarter, size.of(25));
  const std::set<unsigned> of_most = require_confined(most, size.of(75));
  const std::set<unsigned> of_quarter = require_confined(quarter, size.of(25));
  CHECK(parted_multiprocessors(broker) < size.all);
  CHECK(of_most.size() + of_quarter.size() == size.all);
  for (const unsigned one : of_quarter) CHECK(of_most.count(one) == 0);
  Client nearly_all = start(broker, {{kVariable, "99"}});  // more than the parts of equal size have
  require_share(nearly_all, size.of(99));
  CHECK(nearly_all.ask("too_many").find("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE") != std::string::npos);
}

TEST_CASE("the broker's environment is the default, commands change it for servers without clients, and a server's own goes above it") {
  BrokerOptions options;
  options.environment = {{kVariable, "50"}};
  const BrokerFixture broker(options);
  const Size size = size_of(broker);
  CHECK(broker.ctl({"get_default_active_thread_percentage"}).output == "50.0\n");
  REQUIRE(broker.ctl({"set_default_active_thread_percentage", "75"}).ok());
  Client first = start(broker);
  require_share(first, size.of(75));
  REQUIRE(broker.ctl({"set_default_active_thread_percentage", "12.5"}).ok());  // for the next server
  CHECK(broker.ctl({"get_default_active_thread_percentage"}).output == "12.5\n");
  CHECK(broker.ctl({"get_active_thread_percentage", server(broker)}).output == "75.0\n");
  REQUIRE(broker.ctl({"set_active_thread_percentage", server(broker), "50"}).ok());
  Client second = start(broker);
  require_share(second, size.of(50));
  require_share(first, size.of(75));  // clients that are there keep theirs
  Client asks_for_less = start(broker, {{kVariable, "25"}});
  require_share(asks_for_less, size.of(25));
  Client asks_for_more = start(broker, {{kVariable, "90"}});
  require_share(asks_for_more, size.of(50));
  // They are the server's, whichever process it is, and whichever broker.
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(broker.ctl({"get_active_thread_percentage", server(broker)}).output == "50.0\n");
  CHECK(broker.ctl({"get_default_active_thread_percentage"}).output == "12.5\n");
  require_share(first, size.of(75));
  CHECK(are_its_own(where(first, "chain").size(), size.of(75)));
  CHECK(are_its_own(where(asks_for_less, "graph").size(), size.of(25)));
  Client third = start(broker);
  require_share(third, size.of(50));
  REQUIRE(broker.ctl({"set_active_thread_percentage", server(broker), "100"}).ok());
  Client fourth = start(broker);
  require_share(fourth, size.all);
}

TEST_CASE("a client keeps its part over its executor's death") {
  const BrokerFixture broker;
  const Size size = size_of(broker);
  Client client = start(broker, {{kVariable, "25"}});
  (void)require_confined(client, size.of(25));
  for (int turn = 0; turn < 2; ++turn) {
    const std::vector<pid_t> before = broker.servers();
    REQUIRE(before.size() == 1);
    REQUIRE(::kill(before.front(), SIGKILL) == 0);
    REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
    require_share(client, size.of(25));
    (void)require_confined(client, size.of(25));
  }
}

TEST_CASE("a context for a number of multiprocessors keeps to them, in whatever way it launches, also over its executor's death") {
  const BrokerFixture broker;
  const Size size = size_of(broker);
  Client client = start(broker);
  const std::string wanted = std::to_string(size.of(25) - 1);
  REQUIRE(client.ask("context " + wanted) == "ok");
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(number(client, "affinity") == size.of(25));
    CHECK(number(client, "count") == size.all);
    const std::set<unsigned> own = where(client, "null");
    CHECK(are_its_own(own.size(), size.of(25)));
    for (const char* kind : kKinds) {
      if (std::string(kind) == "cooperative" || std::string(kind) == "green") continue;  // of as many blocks as the device has multiprocessors
      INFO(kind);
      CHECK(std::ranges::includes(own, where(client, kind)));
    }
    const std::vector<pid_t> before = broker.servers();
    REQUIRE(before.size() == 1);
    REQUIRE(::kill(before.front(), SIGKILL) == 0);
    REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  }
  REQUIRE(client.ask("leave") == "ok");
  CHECK(number(client, "affinity") == size.all);
  CHECK(where(client, "chain").size() > size.of(25));
}

TEST_CASE("contexts have percentages of their own where the program asks for that, within its own") {
  constexpr const char* kOfContexts = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";
  const BrokerFixture broker;
  const Size size = size_of(broker);
  Client client = start(broker, {{kOfContexts, "1"}, {kVariable, "50"}});
  REQUIRE(client.ask("percent 25") == "ok");
  CHECK(number(client, "count") == size.of(25));
  CHECK(number(client, "affinity") == size.of(25));
  const std::set<unsigned> quarter = where(client, "cooperative");
  CHECK(are_its_own(quarter.size(), size.of(25)));
  REQUIRE(client.ask("percent 80") == "ok");
  CHECK(number(client, "count") == size.of(50));
  CHECK(are_its_own(where(client, "cooperative").size(), size.of(50)));
  REQUIRE(client.ask("percent 25") == "ok");  // beside the other one, which has all of the rest
  const std::set<unsigned> beside = where(client, "chain");
  for (const unsigned place : beside) CHECK(quarter.count(place) == 0);
  CHECK(client.program().errors().empty());

  Client other = start(broker, {{kVariable, "50"}});
  REQUIRE(other.ask("percent 25") == "ok");
  CHECK(number(other, "count") == size.of(50));
  CHECK(where(other, "chain").size() > size.of(25));
}

TEST_CASE("a client with a part that comes beside an endless kernel is served, by another executor") {
  BrokerOptions options;
  options.arguments = {"--executors", "2"};
  const BrokerFixture broker(options);
  const Size size = size_of(broker);
  Client endless = start(broker);
  REQUIRE(endless.ask("spin") == "ok");
  Client quarter = start(broker, {{kVariable, "25"}});
  require_share(quarter, size.of(25));
  (void)require_confined(quarter, size.of(25));
}

TEST_CASE("a client with a part that is killed at work leaves nothing behind") {
  const BrokerFixture broker;
  const Size size = size_of(broker);
  for (int turn = 0; turn < 3; ++turn) {
    Client victim = start(broker, {{kVariable, "25"}});
    REQUIRE(victim.ask("spin") == "ok");
    victim.program().send(SIGKILL);
    REQUIRE(victim.program().wait().signal == SIGKILL);
  }
  Client next = start(broker, {{kVariable, "25"}});
  (void)require_confined(next, size.of(25));
}

TEST_CASE("what is wrong in the variable is told, and left out") {
  BrokerOptions options;
  options.environment = {{kVariable, "fifty"}};
  const BrokerFixture broker(options);
  const Size size = size_of(broker);
  CHECK(broker.log().find("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: \"fifty\" is no percentage") != std::string::npos);
  CHECK(broker.ctl({"get_default_active_thread_percentage"}).output == "100.0\n");
  for (const char* wrong : {"0", "101", "25%", "-5", "x"}) {
    INFO(wrong);
    Client client = start(broker, {{kVariable, wrong}});
    require_share(client, size.all);
    const std::string errors = client.program().errors();
    CHECK(errors.find(std::string(kVariable) + ": \"" + wrong + "\" is no percentage") != std::string::npos);
    CHECK(std::ranges::count(errors, '\n') == 1);
  }
  Client whole = start(broker, {{kVariable, "100"}});
  require_share(whole, size.all);
  CHECK(whole.program().errors().empty());
}

TEST_CASE("a client at 25 % gets about a quarter of the throughput of one that has the whole GPU") {
  if (!on_gpu()) MPSSHIM_SKIP("the CPU driver has no multiprocessors that could be fewer: needs a GPU");
  const BrokerFixture broker;
  Client quarter = start(broker, {{kVariable, "25"}});
  Client all = start(broker);
  (void)number(quarter, "work 500");  // clocks
  std::vector<double> shares;
  for (int turn = 0; turn < 3; ++turn) {
    const unsigned of_all = number(all, "work 2000");
    const unsigned of_quarter = number(quarter, "work 2000");
    REQUIRE(of_all > 100);
    shares.push_back(static_cast<double>(of_quarter) / of_all);
  }
  std::ranges::sort(shares);
  INFO("shares: " << shares[0] << ' ' << shares[1] << ' ' << shares[2]);
  CHECK(shares[1] >= 0.22);
  CHECK(shares[1] <= 0.28);
}
