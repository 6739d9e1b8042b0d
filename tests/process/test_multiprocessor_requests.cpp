// SPDX-License-Identifier: Apache-2.0
// Multiprocessors that are kept for a group (`namespace set --active-thread-percentage-request`): nobody else's kernels are there while one of its
// clients is at work, in whatever way they are launched, and everybody's are once none has been for a while.
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kRequest = "--active-thread-percentage-request";
constexpr const char* kKinds[] = {"null", "kept_stream", "kept_graph", "kept_changed", "kept_wide", "chain", "local", "cooperative", "graph"};
constexpr const char* kMadeAnew[] = {"kept_graph", "kept_changed", "kept_wide"};
const std::map<std::string, std::string> kInGroup{{"MPSSHIM_GROUP", "served"}};

struct KeptBroker {
  explicit KeptBroker(BrokerOptions options = {}) : broker(options) {
    REQUIRE(broker.ctl({"namespace", "create", "served"}).ok());
    const Outcome end = broker.ctl({"namespace", "set", "served", kRequest, "50"});
    INFO(end.explain());
    REQUIRE(end.ok());
  }
  BrokerFixture broker;
};

// All that it finds are within `allowed`, in every one of these ways to launch.
bool keeps_to(Client& client, const std::set<unsigned>& allowed, std::span<const char* const> kinds = kKinds) {
  return std::ranges::all_of(kinds, [&](const char* kind) { return std::ranges::includes(allowed, where(client, kind)); });
}

// Where the client is while the group is at work: as soon as it is another place than the whole device, and its graphs are made anew for that.
std::set<unsigned> await_place(Client& client, unsigned all) {
  std::set<unsigned> place;
  REQUIRE(eventually(std::chrono::seconds(20), [&] { return (place = where(client, "null")).size() < all; }));
  REQUIRE(eventually(std::chrono::seconds(20), [&] { return keeps_to(client, place, kMadeAnew); }));
  return place;
}

void await_all(Client& client, unsigned all) {
  for (const char* kind : {"null", "kept_stream", "kept_graph", "kept_changed", "kept_wide", "chain"}) {
    INFO(kind);
    CHECK(eventually(std::chrono::seconds(20), [&] { return where(client, kind).size() == all; }));
  }
}

}  // namespace

TEST_CASE("what is kept for a group is its own while it is at work, and everybody's once it is not") {
  BrokerFixture broker;
  Client other = start_with(broker, "share_client");
  const unsigned all = number(other, "count");
  for (const char* kind : kKinds) CHECK(where(other, kind).size() <= all);  // its streams and graphs are there before anything is asked for
  REQUIRE(broker.ctl({"namespace", "create", "served"}).ok());
  const Outcome end = broker.ctl({"namespace", "set", "served", kRequest, "50"});
  INFO(end.explain());
  REQUIRE(end.ok());
  const unsigned left = number(other, "count");  // what it can count on
  CHECK(left < all);
  CHECK(left >= all / 4);
  await_all(other, all);  // lent
  Client member = start_with(broker, "share_client", kInGroup);
  CHECK(number(member, "count") == all);
  std::set<unsigned> place;
  for (int turn = 0; turn < 2; ++turn) {
    INFO("turn " << turn);
    REQUIRE(member.ask("toil") == "ok");
    const std::set<unsigned> now = await_place(other, all);
    CHECK(now.size() >= left);
    CHECK(now.size() <= all - all / 4);
    CHECK(keeps_to(other, now));
    if (turn == 1) CHECK(now == place);
    place = now;
    Client late = start_with(broker, "share_client");  // who comes while it is at work
    CHECK(number(late, "count") == left);
    CHECK(keeps_to(late, place));
    Client less = start_with(broker, "share_client", {{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"}});
    CHECK(number(less, "count") < left);
    CHECK(keeps_to(less, place));
    CHECK(are_its_own(where(less, "null").size(), number(less, "count")));
    REQUIRE(member.ask("rest") == "ok");
    CHECK(where(member, "null").size() == all);
    await_all(other, all);
    CHECK(number(other, "count") == left);
    CHECK(are_its_own(where(less, "null").size(), number(less, "count")));
  }
  REQUIRE(broker.ctl({"namespace", "set", "served", kRequest, "none"}).ok());
  CHECK(number(other, "count") == all);
  REQUIRE(member.ask("toil") == "ok");
  REQUIRE(member.ask("rest") == "ok");
  await_all(other, all);
  CHECK(broker.ctl({"namespace", "get", "served", "active-thread-percentage-request"}).output == "none\n");
}

TEST_CASE("two groups at work have no multiprocessor of each other's, and others none of either's") {
  KeptBroker kept;
  const BrokerFixture& broker = kept.broker;
  REQUIRE(broker.ctl({"namespace", "set", "served", kRequest, "25"}).ok());
  REQUIRE(broker.ctl({"namespace", "create", "second"}).ok());
  REQUIRE(broker.ctl({"namespace", "set", "second", kRequest, "25"}).ok());
  Client first = start_with(broker, "share_client", kInGroup);
  Client second = start_with(broker, "share_client", {{"MPSSHIM_GROUP", "second"}});
  Client other = start_with(broker, "share_client");
  const unsigned all = static_cast<unsigned>(where(other, "null").size());
  REQUIRE(first.ask("toil") == "ok");
  const std::set<unsigned> beside_first = await_place(other, all);
  CHECK(eventually(std::chrono::seconds(20), [&] { return keeps_to(second, beside_first); }));
  REQUIRE(second.ask("toil") == "ok");
  std::set<unsigned> beside_both;
  REQUIRE(eventually(std::chrono::seconds(20), [&] {
    beside_both = where(other, "null");
    return beside_both.size() < beside_first.size();
  }));
  CHECK(std::ranges::includes(beside_first, beside_both));
  CHECK(eventually(std::chrono::seconds(20), [&] { return keeps_to(other, beside_both); }));
  REQUIRE(first.ask("rest") == "ok");
  REQUIRE(second.ask("rest") == "ok");
  await_all(other, all);
}

TEST_CASE("what is kept for a group stays so over its executor's death and over a restart of the broker") {
  KeptBroker kept;
  const BrokerFixture& broker = kept.broker;
  Client member = start_with(broker, "share_client", kInGroup);
  Client other = start_with(broker, "share_client");
  const unsigned left = number(other, "count");
  const unsigned all = number(member, "count");
  const auto require_kept = [&] {
    REQUIRE(member.ask("toil") == "ok");
    const std::set<unsigned> place = await_place(other, all);
    CHECK(place.size() >= left);
    CHECK(keeps_to(other, place));
    REQUIRE(member.ask("rest") == "ok");
    await_all(other, all);
    CHECK(number(other, "count") == left);
  };
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  require_kept();
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(broker.ctl({"namespace", "get", "served", "active-thread-percentage-request"}).output == "50.0\n");
  require_kept();
}

TEST_CASE("others keep off again beside a kernel of the group's that does not end") {
  BrokerOptions options;
  options.arguments = {"--executors", "1"};
  KeptBroker kept(options);
  const BrokerFixture& broker = kept.broker;
  Client member = start_with(broker, "share_client", kInGroup);
  Client other = start_with(broker, "share_client");
  const unsigned all = number(member, "count");
  REQUIRE(member.ask("toil") == "ok");
  const std::set<unsigned> place = await_place(other, all);
  REQUIRE(member.ask("rest") == "ok");
  await_all(other, all);
  REQUIRE(member.ask("spin") == "ok");  // from now on there is no moment without kernels
  REQUIRE(eventually(std::chrono::seconds(20), [&] { return where(other, "null").size() < all; }));
  for (const char* kind : {"null", "kept_stream", "chain"}) CHECK(std::ranges::includes(place, where(other, kind)));
}

TEST_CASE("what is kept for a group is changed while clients end") {
  const KeptBroker kept;
  const BrokerFixture& broker = kept.broker;
  for (int turn = 0; turn < 24; ++turn) {
    INFO("turn " << turn);
    Client other = start_with(broker, "share_client");
    Client member = start_with(broker, "share_client", kInGroup);
    for (Client* each : {&other, &member}) CHECK_FALSE(where(*each, "null").empty());
    for (Client* each : {&other, &member}) each->program().send(SIGKILL);
    for (const char* request : {"25", "50", "none", "50"}) {
      const Outcome end = broker.ctl({"namespace", "set", "served", kRequest, request});
      INFO(end.explain());
      CHECK(end.ok());
    }
  }
}

TEST_CASE("a group whose client has gone keeps nothing from others") {
  KeptBroker kept;
  const BrokerFixture& broker = kept.broker;
  Client other = start_with(broker, "share_client");
  const unsigned all = static_cast<unsigned>(where(other, "null").size());
  {
    Client member = start_with(broker, "share_client", kInGroup);
    REQUIRE(member.ask("toil") == "ok");
    CHECK(await_place(other, all).size() < all);
    member.program().send(SIGKILL);
  }
  await_all(other, all);
}
