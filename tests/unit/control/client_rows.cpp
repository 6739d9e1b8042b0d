// SPDX-License-Identifier: Apache-2.0
// What mpsctl top makes of two answers of ps.
#include "broker/ctl/client_rows.hpp"

#include "broker/commands/command_table.hpp"
#include "broker/ctl/top_view.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::ctl;
using namespace mpsshim::broker::control::testing;

namespace {

const std::string kHeading = "pid,session,age_ms,gpu_time_us,launches,in_flight,memory_bytes,uid,command\n";

ClientRows rows_of(const std::string& lines) {
  const auto rows = read_clients(kHeading + lines);
  REQUIRE(rows);
  return *rows;
}

std::string order(const ClientRows& rows, std::string_view key) {
  std::string sessions;
  for (const ClientRow* row : sorted(rows, key)) sessions += std::to_string(row->session);
  return sessions;
}

}  // namespace

TEST_CASE("top: comma-separated values are read as they are written") {
  const auto read = read_comma_separated("a,b\n\"x,\"\"y\"\"\n\",\n,\"\"\n");
  REQUIRE(read);
  CHECK(*read == std::vector<std::vector<std::string>>{{"a", "b"}, {"x,\"y\"\n", ""}, {"", ""}});
  CHECK(read_comma_separated("")->empty());
  for (const char* text : {"a", "a,b", "a,\n\"", "\"a", "\"a\"b\n", "a\n\"b\"", "a,b\nc"}) {
    INFO(text);
    CHECK_FALSE(read_comma_separated(text));
  }
}

TEST_CASE("top: what the broker answers is understood, whatever a program calls itself") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  CHECK(read_clients(console.ok("ps --csv"))->empty());
  proto::Attached attached;
  const TestClient client = broker.attach(&attached);
  broker.executor().counts(attached.session).gpu_ns = 5'000'000;
  broker.executor().counts(attached.session).launches = 7;
  const auto rows = read_clients(console.ok("ps --csv"));
  REQUIRE(rows);
  REQUIRE(rows->size() == 1);
  const ClientRow& row = rows->at(attached.session);
  CHECK(row.pid == getpid());
  CHECK(row.uid == geteuid());
  CHECK(row.state == "active");
  CHECK(row.gpu_time_us == 5'000u);
  CHECK(row.launches == 7u);
}

TEST_CASE("top: answers that are none of ps") {
  for (const char* text : {"", "\n", "a,b\n1,2\n", "session\n1\n", "session,age_ms\n1\n", "session,age_ms\n1,2,3\n", "session,age_ms\n\"1,2\n"}) {
    INFO(text);
    CHECK_FALSE(read_clients(text));
  }
  const auto odd = read_clients("session,age_ms,launches,gpu_time_us\n1,-5,x,\n");
  REQUIRE(odd);
  CHECK(odd->at(1).age_ms == 0);
  CHECK(odd->at(1).launches == 0u);
  CHECK_FALSE(odd->at(1).gpu_time_us);
}

TEST_CASE("top: shares and rates are of the time between two answers, by the client's own age") {
  const ClientRows before = rows_of("10,1,1000,100000,50,0,0,0,a\n11,2,5000,0,,0,0,0,b\n");
  ClientRows now = rows_of("10,1,3000,1600000,250,0,0,0,a\n11,2,5000,0,,0,0,0,b\n12,3,4000,1000000,8,0,0,0,c\n");
  compare(now, before);
  CHECK(now.at(1).gpu_share.value() == Approx(0.75));
  CHECK(now.at(1).launches_per_second.value() == Approx(100));
  CHECK_FALSE(now.at(2).gpu_share);                    // no time has passed
  CHECK(now.at(3).gpu_share.value() == Approx(0.25));  // since it began
  CHECK(now.at(3).launches_per_second.value() == Approx(2));
  ClientRows other = rows_of("10,1,500,20000,5,0,0,0,a\n");  // of another broker, by the same number
  compare(other, now);
  CHECK(other.at(1).gpu_share.value() == Approx(0.04));
  ClientRows full = rows_of("10,1,1000,1000400,0,0,0,0,a\n");
  compare(full, {});
  CHECK(full.at(1).gpu_share.value() == 1);
}

TEST_CASE("top: every key sorts, and what is alike stays in the order of sessions") {
  ClientRows rows = rows_of("30,1,1000,100000,50,1,900,7,a\n10,2,2000,400000,10,3,100,5,b\n20,3,500,0,100,2,500,6,c\n40,4,500,0,100,2,500,6,d\n");
  compare(rows, {});
  CHECK(order(rows, "gpu") == "2134");
  CHECK(order(rows, "launches") == "3412");
  CHECK(order(rows, "in_flight") == "2341");
  CHECK(order(rows, "memory") == "1342");
  CHECK(order(rows, "age") == "2134");
  CHECK(order(rows, "pid") == "2314");
  CHECK(order(rows, "user") == "2341");
  for (const std::string_view key : kSortKeys) CHECK(order(rows, key).size() == 4);
}

TEST_CASE("top: a page says what there is, also of what is not known") {
  ClientRows rows = rows_of("0,1,61000,,,4,2097152,4294967294,\"./a,b\"\n");
  compare(rows, {});
  const TopView view = view_of(rows, "/run/x", "12:00:00", "gpu");
  CHECK(view.title == "mpsshim 12:00:00  1 client  2M of device memory  0 launches/s  by gpu  /run/x");
  REQUIRE(view.clients.size() == 1);
  for (const char* part : {"       - ", " 4294967294 ", " 1:01 ", " 2M ", " - ", " 4 ", "./a,b"})
    CHECK(view.clients[0].find(part) != std::string::npos);
}

TEST_CASE("top: waits since the last look, and by whom most") {
  const char* const heading = "session,pid,age_ms,waits,wait_time_us\n";
  auto now = read_clients(std::string(heading) + "1,7,5000,300,2500000\n2,8,5000,40,4000000\n3,9,5000,,\n");
  const auto before = read_clients(std::string(heading) + "1,7,3000,100,1000000\n2,8,3000,40,4000000\n3,9,3000,,\n");
  REQUIRE(now);
  REQUIRE(before);
  compare(*now, *before);
  CHECK(now->at(1).waits_per_second.value() == Approx(100));
  CHECK(now->at(1).wait_share.value() == Approx(0.75));
  CHECK(now->at(2).wait_share.value() == 0);
  CHECK_FALSE(now->at(3).wait_share);
  CHECK(order(*now, "wait") == "123");
  const TopView view = view_of(*now, "/run/x", "12:00:00", "wait");
  CHECK(view.headings.find("  WAIT%  WAIT/S ") != std::string::npos);
  CHECK(view.clients[0].find("   75.0     100 ") != std::string::npos);
  auto other = read_clients(std::string(heading) + "1,7,5000,99,2500000\n");  // another broker's
  compare(*other, *before);
  CHECK(other->at(1).waits_per_second.value() == Approx(19.8));
}

TEST_CASE("top: part and priority of a client") {
  const auto rows = read_clients("session,pid,age_ms,active_thread_percentage,client_priority\n1,7,5000,12.25,1\n2,8,5000,,\n");
  REQUIRE(rows);
  const TopView view = view_of(*rows, "/run/x", "12:00:00", "pid");
  REQUIRE(view.clients.size() == 2);
  CHECK(view.headings.find("  SM% PRIO ") != std::string::npos);
  CHECK(view.clients[0].find(" 12.25    1 ") != std::string::npos);
  CHECK(view.clients[1].find("     -    - ") != std::string::npos);
}

TEST_CASE("top: lines are cut between characters") {
  CHECK(cut_to("abc", 5) == "abc");
  CHECK(cut_to("abc", 2) == "ab");
  CHECK(cut_to("abc", 0).empty());
  CHECK(cut_to("\xc3\xa4\xe2\x82\xac"
               "b",
               2) == "\xc3\xa4\xe2\x82\xac");
  CHECK(cut_to("\x80\x80"
               "a",
               1) ==
        "\x80\x80"
        "a");
}
