// SPDX-License-Identifier: Apache-2.0
// mpsbroker --priority: threads that clients wait for come before other programs on busy processors, the others do not; and their slices are short.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/executor/base/thread_priority.hpp"
#include "broker/rights/rights.hpp"
#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::test {
namespace {

// What `of` says of a process's threads that have such a name, numbers aside.
template <typename Of>
auto of_threads(pid_t process, const std::string& name, Of&& of) {
  std::vector<decltype(of(pid_t{}))> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    std::string own;
    std::getline(std::ifstream(entry.path() / "comm"), own);
    if (own.substr(0, own.find('-')) == name) found.push_back(of(static_cast<pid_t>(std::stoi(entry.path().filename().string()))));
  }
  return found;
}

int niceness_of(pid_t thread) { return getpriority(PRIO_PROCESS, static_cast<id_t>(thread)); }

// A thread's slice, in ns; 0: the kernel does not tell.
std::uint64_t slice_of(pid_t thread) {
  struct {
    std::uint32_t size = 48, policy = 0;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
  } attributes;
  return syscall(SYS_sched_getattr, thread, &attributes, sizeof attributes, 0) == 0 ? attributes.runtime_ns : 0;
}

template <typename Value>
bool are_all(const std::vector<Value>& values, Value expected) {
  return !values.empty() && std::ranges::all_of(values, [expected](Value one) { return one == expected; });
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
    return eventually(std::chrono::seconds(5), [&] { return are_all(of_threads(broker.servers().at(0), name, niceness_of), niceness); });
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
  CHECK(eventually(std::chrono::seconds(5), [&] { return are_all(of_threads(broker.servers().at(0), "worker", niceness_of), -10); }));
}

TEST_CASE("threads that clients wait for have the shortest slices, others as they come") {
  if (slice_of(getpid()) == 0) MPSSHIM_SKIP("the kernel has no slices of single threads (Linux 6.12)");
  const BrokerFixture broker;
  REQUIRE(broker.run("memory_client").ok());
  const pid_t executor = broker.servers().at(0);
  for (const char* const name : {"worker", "window"}) {
    INFO(name);
    CHECK(eventually(std::chrono::seconds(5), [&] { return are_all(of_threads(executor, name, slice_of), broker::kServingSliceNs); }));
  }
  const std::vector<std::uint64_t> helpers = of_threads(executor, "helper", slice_of);
  CHECK_FALSE(helpers.empty());
  CHECK(std::ranges::none_of(helpers, [](std::uint64_t slice) { return slice == broker::kServingSliceNs; }));
}

}  // namespace mpsshim::test
