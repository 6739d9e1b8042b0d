// SPDX-License-Identifier: Apache-2.0
// How much of the log a user's clients may cause: others' lines and what matters are written all the same.
#include "broker/log_quota.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "broker/control/base/complaints.hpp"
#include "broker/log_subject.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using mpsshim::broker::control::complain;

namespace {

constexpr uid_t kAda = 1001, kBob = 1002;

// Lines go to a file as long as it lives.
struct QuotaLog {
  QuotaLog() { REQUIRE(open_log({.path = path(), .identity = "Test", .to_standard_error = false, .least = LogLevel::info})); }
  ~QuotaLog() {
    set_log_quota(0);
    open_log({.path = "", .identity = "Broker", .to_standard_error = true, .least = LogLevel::info});
  }
  std::string path() const { return folder.path() / "log"; }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  std::size_t count(const std::string& word) const {
    const std::string all = text();
    std::size_t count = 0;
    for (std::size_t at = all.find(word); at != std::string::npos; at = all.find(word, at + 1)) ++count;
    return count;
  }
  mpsshim::test::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("log quota: half for plain lines, a quarter more for warnings, the rest for errors, it comes back in an hour") {
  LogQuota quota(4'000);
  auto now = LogQuota::Clock::now();
  const auto written = [&](uid_t user, LogLevel level) {
    unsigned lines = 0;
    for (int i = 0; i < 1'000; ++i) lines += quota.take(user, level, 100, now) ? 1 : 0;
    return lines;
  };
  CHECK(written(kAda, LogLevel::info) == 20);
  CHECK(written(kAda, LogLevel::info) == 0);
  CHECK(written(kAda, LogLevel::warning) == 10);
  CHECK(written(kAda, LogLevel::error) == 10);
  CHECK(written(kBob, LogLevel::info) == 20);
  CHECK(quota.take_left_out(kAda, now) == 4'000 - 40);
  CHECK(quota.take_left_out(kAda, now) == 0);
  now += std::chrono::minutes(45);
  CHECK(written(kAda, LogLevel::info) == 10);  // three quarters are back
  now += std::chrono::hours(10);
  CHECK(written(kAda, LogLevel::info) == 20);
}

TEST_CASE("a user's flood of lines is cut off, nobody else's line is") {
  const QuotaLog log;
  set_log_quota(64 << 10);
  {
    const LogSubject subject(kAda);
    for (int i = 0; i < 10'000; ++i) log_info("Ada has done something {} times.", i);
    log_error("Ada is guilty.");
  }
  {
    const LogSubject subject(kBob);
    log_info("Bob has come.");
  }
  log_info("The broker goes on.");
  CHECK(log.count("Ada has done") > 100);
  CHECK(log.count("Ada has done") < 2'000);
  for (const char* line : {"Ada is guilty.", "Bob has come.", "The broker goes on."}) CHECK(log.count(line) == 1);
  CHECK(log.count("lines about clients of user 1001 were left out") == 1);
  CHECK(std::filesystem::file_size(log.path()) < (128 << 10));
}

TEST_CASE("one user's complaints take no other's place") {
  const QuotaLog log;
  {
    const LogSubject subject(kAda);
    for (int i = 0; i < 1'000; ++i) complain("Ada complains.");
  }
  const LogSubject subject(kBob);
  complain("Bob is refused.");
  CHECK(log.count("Ada complains.") <= 51);
  CHECK(log.count("Bob is refused.") == 1);
}
