// SPDX-License-Identifier: Apache-2.0
// mpsbroker --priority: threads that clients wait for come before other programs on busy processors, the others do not.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "broker/rights/rights.hpp"
#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::test {
namespace {

// The niceness of a process's threads, by their names without numbers.
std::map<std::string, std::vector<int>> niceness_of_threads(pid_t process) {
  std::map<std::string, std::vector<int>> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    const int thread = std::stoi(entry.path().filename().string());
    found[name.substr(0, name.find('-'))].push_back(getpriority(PRIO_PROCESS, static_cast<id_t>(thread)));
  }
  return found;
}

bool are_all(const std::vector<int>& niceness, int expected) {
  return !niceness.empty() && std::ranges::all_of(niceness, [expected](int one) { return one == expected; });
}

// The broker may raise the limit that its executors have once they have given up their rights.
bool may_raise_limit() {
  constexpr rlim_t kOfTen = 30;  // the limit that niceness -10 takes
  rlimit limit{};
  return broker::has_capability(CAP_SYS_RESOURCE) || (getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_max >= kOfTen);
}

}  // namespace

TEST_CASE("threads that clients wait for have a priority, helpers have none") {
  if (!may_raise_limit() && !broker::has_capability(CAP_SYS_NICE)) MPSSHIM_SKIP("niceness below 0 is not allowed here");
  const int priority = GENERATE(10, 3, 0);
  BrokerOptions options;
  options.arguments = {"--priority", std::to_string(priority)};
  if (!may_raise_limit()) options.arguments.push_back("--keep-rights");
  const BrokerFixture broker(options);
  REQUIRE(broker.run("memory_client").ok());
  // A thread has its name before its niceness.
  const auto have = [&](const char* name, int niceness) {
    return eventually(std::chrono::seconds(5), [&] { return are_all(niceness_of_threads(broker.servers().at(0))[name], niceness); });
  };
  CHECK(have("worker", -priority));
  CHECK(have("window", -priority));
  CHECK(have("helper", 0));
}

TEST_CASE("an executor that follows another has the priority as well") {
  if (!may_raise_limit()) MPSSHIM_SKIP("the limit of niceness (RLIMIT_NICE) cannot be raised here");
  const BrokerFixture broker;
  const pid_t first = broker.servers().at(0);
  REQUIRE(broker.ctl({"restart"}).ok());
  REQUIRE(broker.servers().at(0) != first);
  REQUIRE(broker.run("memory_client").ok());
  CHECK(eventually(std::chrono::seconds(5), [&] { return are_all(niceness_of_threads(broker.servers().at(0))["worker"], -10); }));
}

}  // namespace mpsshim::test
