// SPDX-License-Identifier: Apache-2.0
// Multiprocessors that are kept for groups: when they are lent, which ones they are, what executors and clients are told of them, and what commands
// answer.
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "broker/control/life/multiprocessor_requests.hpp"
#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kAll = proto::first_chunks(10) | proto::kRemainderBit;

// Devices of 23 multiprocessors, in ten chunks of two.
struct KeepingBroker : ControlFixture {
  explicit KeepingBroker(const SessionLimits& limits = ControlFixture::quick_limits()) : ControlFixture(limits) {
    executor().multiprocessors = 23;
    serve();
  }
  Console console{*this};

  TestClient attach(const std::string& group, std::uint32_t percentage, proto::Attached& attached, message::SessionOpen& opened) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::ProvisionAsk ask;
    set_text(ask.group, group);
    ask.thread_percentage = percentage;
    told = client.ask<proto::ProvisionTold>(ask);
    client.send(proto::Attach{});
    opened = executor().expect<message::SessionOpen>().message;
    executor().send(message::SessionOpened{.session = opened.session});
    attached = client.await<proto::Attached>();
    REQUIRE(attached.header.status == CUDA_SUCCESS);
    return client;
  }
  void work(std::uint64_t session_id) { manager.find(session_id)->counts.set({.launches = ++launches}); }
  // The next order to a session, obeyed.
  message::SessionProvision obey() {
    const auto order = executor().expect<message::SessionProvision>().message;
    executor().send(message::SessionProvisioned{
        .session = order.session,
        .order = order.order,
        .status = CUDA_SUCCESS,
        .thread_percentage = order.chunks != 0 ? proto::kWholePercentage : order.thread_percentage,
    });
    turn_for(loop, 10);
    return order;
  }
  void keep(const std::string& group, const std::string& percentage) {
    console.ok("namespace create " + group);
    CHECK(console.ok("namespace set " + group + " --active-thread-percentage-request " + percentage) == "");
  }
  proto::ProvisionTold told;
  std::uint64_t launches = 0;
};

}  // namespace

TEST_CASE("requests: a part is lent once there has been no work for a while, longer for who comes back soon") {
  GroupActivity activity;
  auto now = GroupActivity::Clock::time_point(seconds(1'000));
  CHECK_FALSE(activity.look(0, now));
  CHECK_FALSE(activity.is_at_work());
  CHECK(activity.look(1, now));
  CHECK(activity.is_at_work());
  CHECK_FALSE(activity.look(2, now += milliseconds(900)));
  CHECK_FALSE(activity.look(2, now += milliseconds(900)));  // since the last work, not the first
  CHECK(activity.look(2, now += milliseconds(200)));
  CHECK_FALSE(activity.look(1, now));  // one of its sessions has ended
  CHECK_FALSE(activity.is_at_work());
  std::uint64_t counted = 2;
  for (const int keep : {2, 4, 8, 16, 32, 64, 64}) {
    CHECK(activity.look(++counted, now += seconds(9)));
    CHECK(activity.is_at_work());
    CHECK(activity.keep() == seconds(keep));
    CHECK_FALSE(activity.look(counted, now += seconds(keep) - milliseconds(1)));
    CHECK(activity.look(counted, now += milliseconds(1)));
    CHECK_FALSE(activity.is_at_work());
  }
  CHECK(activity.look(++counted, now += seconds(10)));
  CHECK(activity.keep() == seconds(1));
}

TEST_CASE("requests: clients with less than is left are spread over it, each always at the same place") {
  CHECK(spread_chunks(0b1111, 4, 7) == 0b1111);
  CHECK(spread_chunks(0b1111, 9, 7) == 0b1111);
  CHECK(spread_chunks(0b1011'0110, 2, 0) == 0b0000'0110);
  CHECK(spread_chunks(0b1011'0110, 2, 1) == 0b0011'0000);
  CHECK(spread_chunks(0b1011'0110, 2, 2) == 0b1000'0010);
  CHECK(spread_chunks(0b1011'0110, 2, UINT64_MAX) == spread_chunks(0b1011'0110, 2, UINT64_MAX % 5));
}

TEST_CASE("requests: others keep off while the group is at work, and are told so again when it is not") {
  KeepingBroker broker;
  proto::Attached other, member, late;
  message::SessionOpen opened;
  const TestClient outsider = broker.attach("", 5'000, other, opened);
  CHECK(other.thread_percentage == 5'000);
  std::optional<Commands::Result> answered;
  broker.console.ok("namespace create kept");
  broker.console.commands.execute("namespace set kept --active-thread-percentage-request 60",
                                  [&](const Commands::Result& result) { answered = result; });
  CHECK(broker.obey().chunks == 0);  // a session that is there hears of it, and counts less from then on
  REQUIRE(answered);
  CHECK(answered->ok);
  CHECK(broker.session(other.session).thread_percentage == 5'000);
  const TestClient inside = broker.attach("kept", 0, member, opened);
  CHECK(member.thread_percentage == proto::kWholePercentage);
  CHECK(opened.chunks == 0);
  const auto is_shown = [&](const std::string& devices) {
    return broker.console.ok("namespace list --json").find(R"("multiprocessors_not_lent_on":)" + devices + "}") != std::string::npos;
  };
  CHECK(is_shown("[]"));
  broker.work(member.session);
  auto order = broker.obey();
  CHECK(is_shown("[0]"));
  CHECK(order.session == other.session);
  CHECK(std::popcount(order.chunks) == 4);  // 60 % are six chunks; half of the device would be five
  CHECK((order.chunks & ~proto::first_chunks(10)) == 0);
  const std::uint64_t left = order.chunks;
  CHECK(broker.session(other.session).thread_percentage == 5'000);  // what it has by itself is as it was
  const TestClient newcomer = broker.attach("", 0, late, opened);
  CHECK(opened.chunks == (left | proto::kRemainderBit));
  CHECK(late.thread_percentage == 11u * proto::kWholePercentage / 23);  // 23 less six chunks of two
  CHECK(broker.told.thread_percentage[0] == late.thread_percentage);
  CHECK(broker.told.thread_percentage[1] == late.thread_percentage);
  proto::Attached small;
  const TestClient limited = broker.attach("", 2'000, small, opened);
  CHECK(std::popcount(opened.chunks) == 2);
  CHECK((opened.chunks & ~left) == 0);
  for (int i = 0; i < 3; ++i) {  // nobody works: it is lent
    order = broker.obey();
    CHECK(order.session != member.session);
    CHECK(order.chunks == 0);
  }
  CHECK(is_shown("[]"));
  CHECK(broker.console.ok("client get " + std::to_string(getpid()) + " active-thread-percentage").starts_with("50.0\n"));
  CHECK(broker.console.ok("namespace get kept active-thread-percentage-request") == "60.0\n");
  broker.console.commands.execute("namespace set kept --active-thread-percentage-request none", [](const Commands::Result&) {});
  for (int i = 0; i < 4; ++i) broker.obey();
  broker.work(member.session);
  turn_for(broker.loop, 100);
  CHECK(broker.session(late.session).told_chunks == 0);
  CHECK(is_shown("null"));
  CHECK(broker.console.ok("namespace get kept active-thread-percentage-request") == "none\n");
}

TEST_CASE("requests: groups keep off each other's parts, which have no chunk in common") {
  KeepingBroker broker;
  broker.keep("one", "30");
  broker.keep("two", "40");
  proto::Attached first, second, other;
  message::SessionOpen opened;
  const TestClient of_one = broker.attach("one", 0, first, opened);
  const TestClient of_two = broker.attach("two", 0, second, opened);
  const TestClient outsider = broker.attach("", 0, other, opened);
  CHECK(first.thread_percentage == 15u * proto::kWholePercentage / 23);   // without the four chunks of the other
  CHECK(second.thread_percentage == 17u * proto::kWholePercentage / 23);  // without three
  CHECK(other.thread_percentage == 9u * proto::kWholePercentage / 23);
  broker.work(first.session);
  std::uint64_t beside_one = 0;
  for (int i = 0; i < 2; ++i) beside_one = broker.obey().chunks;
  CHECK(std::popcount(kAll & ~beside_one) == 3);
  broker.work(first.session);
  broker.work(second.session);
  std::uint64_t of_first = 0, of_other = 0;
  for (int i = 0; i < 2; ++i) {
    const auto order = broker.obey();
    (order.session == first.session ? of_first : of_other) = order.chunks;
  }
  CHECK(std::popcount(kAll & ~of_first) == 4);
  CHECK((kAll & ~of_first & ~beside_one) == 0);  // the second's part is none of the first's
  CHECK(of_other == (of_first & beside_one));
}

TEST_CASE("requests: what cannot be kept is refused, and what was kept outlives a restart") {
  KeepingBroker broker;
  broker.keep("one", "50");
  broker.console.ok("namespace create two");
  broker.keep("gone", "40");
  CHECK(broker.console.error("namespace set two --active-thread-percentage-request 10").find("9 are kept for other namespaces") != std::string::npos);
  broker.console.ok("namespace delete gone");  // what was kept for it is anybody's
  const auto refused = [&](const std::string& percentage) {
    return broker.console.error("namespace set two --active-thread-percentage-request " + percentage);
  };
  CHECK(refused("60") ==
        "60.0 % cannot be kept: that is 6 of the 10 parts that device 0 is cut into, 5 are kept for other namespaces, and one is to be left");
  CHECK(refused("100").find("that is 10 of the 10 parts") != std::string::npos);
  CHECK(refused("0").find("is no percentage: a number above 0, to 100, such as 25 or 12.5, or none") != std::string::npos);
  broker.keep("three", "20");
  CHECK(refused("30").find("that is 3 of the 10 parts that device 0 is cut into, 7 are kept") != std::string::npos);
  broker.keep("four", "20");
  CHECK(broker.console.ok("namespace list --format=csv,noheader").find(",100.0,50.0,,0,\n") != std::string::npos);
  StateWriter writer;
  broker.manager.namespaces().save(writer);
  std::string why;
  StateReader reader(writer.finish(), why);
  Namespaces after;
  after.restore(reader);
  REQUIRE(reader.ok());
  for (const auto& [key, of] : broker.manager.namespaces().all()) {
    REQUIRE(after.find(key) != nullptr);
    CHECK(after.find(key)->thread_percentage_request == of.thread_percentage_request);
  }
  SessionLimits parted = ControlFixture::quick_limits();
  parted.has_static_partitions = true;
  KeepingBroker other(parted);
  other.console.ok("namespace create one");
  CHECK(other.console.error("namespace set one --active-thread-percentage-request 50").find("this broker has static partitions") !=
        std::string::npos);
}

TEST_CASE("requests: others have all again, and count it, when a group is deleted at once behind its last work") {
  KeepingBroker broker;
  proto::Attached other, member;
  message::SessionOpen opened;
  TestClient outsider = broker.attach("", 0, other, opened);
  const auto page = map_header(outsider.fds);
  broker.console.ok("namespace create kept");
  broker.console.commands.execute("namespace set kept --active-thread-percentage-request 50", [](const Commands::Result&) {});
  broker.obey();
  TestClient inside = broker.attach("kept", 0, member, opened);
  broker.work(member.session);
  CHECK(broker.obey().chunks != 0);
  CHECK(header_of(page).thread_percentage == 13u * proto::kWholePercentage / 23);
  inside.hang_up();
  broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionClosed{.session = member.session});
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.sessions().size() == 1; }));
  CHECK(broker.console.ok("namespace delete kept") == "");
  CHECK(broker.obey().chunks == 0);
  CHECK(header_of(page).thread_percentage == proto::kWholePercentage);
}

TEST_CASE("requests: those of a file hold as far as there is room") {
  SessionLimits limits = ControlFixture::quick_limits();
  for (const char* name : {"a", "b"}) {
    Namespace wanted;
    wanted.thread_percentage_request = 6'000;
    limits.namespaces.emplace_back(name, wanted);
  }
  KeepingBroker broker(limits);
  CHECK(broker.console.ok("namespace get a active-thread-percentage-request") == "60.0\n");
  CHECK(broker.console.ok("namespace get b active-thread-percentage-request") == "none\n");
}
